// Reads an image of containerd through ctr: from its name over index and manifest to its config.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <optional>
#include <string>

#include "runner/container/image.h"

namespace sortie::runner::container {

/// Same as look_at_image().
boost::asio::awaitable<Result<std::optional<ImageFacts>>> look_at_ctr_image(EngineCalls& calls,
                                                                            Client client,
                                                                            std::string image);

}  // namespace sortie::runner::container
