// An image on this host: whether it is there, having it pulled, and what it says of itself.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/wire/container_messages.h"
#include "runner/container/engine.h"

namespace sortie::runner::container {

struct ImageFacts {
  std::string id;           // "sha256:<hex>"
  std::string repo_digest;  // "name@sha256:<hex>", may be empty
  std::string architecture;
  std::uint64_t bytes = 0;
  std::vector<std::string> entrypoint;
};

/// What the job needs to know when it comes.
struct ReadyImage {
  EngineFacts engine;
  ImageFacts image;
};

/// Docker's name of the machine that this is: "amd64".
std::string own_architecture();

/// From the engine's own JSON. Nothing: it is not that.
std::optional<ImageFacts> read_image_json(std::string_view text);

/// Nothing: the image is not there.
boost::asio::awaitable<Result<std::optional<ImageFacts>>> look_at_image(EngineCalls& calls,
                                                                        Client client,
                                                                        std::string image);

/// Does what the order says: looks, pulls, looks. Errors name the image and say what the engine
/// said.
boost::asio::awaitable<Result<ReadyImage>> have_image(
    EngineCalls& calls, wire::ImageOrder order,
    std::function<void(const wire::ImageProgress&)> on_progress, bool& pulled);

/// "3 of 7 layers are here" from the lines that `docker pull` prints without a terminal.
class PullProgress {
 public:
  void take(std::string_view line);
  std::string text(const std::string& image) const;

 private:
  std::vector<std::string> layers_, loaded_, ready_;
  std::string last_;
};

}  // namespace sortie::runner::container
