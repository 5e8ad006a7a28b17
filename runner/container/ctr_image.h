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

/// ctr starts process 1 as the image's own user. Error: that user can not become `wanted`, "UID" or
/// "UID:GID". Names pass, because only the container can resolve them.
Result<> check_ctr_user(const std::string& image, const std::string& image_user,
                        const std::string& wanted);

}  // namespace sortie::runner::container
