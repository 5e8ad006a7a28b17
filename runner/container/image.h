// An image on this host: inspects it and has the engine pull it.
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
  // Only read for ctr, which starts an image by name, and only as its own user:
  std::string name, user;
};

/// What the job needs to know about its engine and image.
struct ReadyImage {
  EngineFacts engine;
  ImageFacts image;
};

/// Docker's name of this machine's architecture: "amd64".
std::string own_architecture();

/// Parses the engine's JSON. Returns nullopt if it is malformed.
std::optional<ImageFacts> read_image_json(std::string_view text);

/// Inspects an image. Returns nullopt if it is not on this host.
boost::asio::awaitable<Result<std::optional<ImageFacts>>> look_at_image(EngineCalls& calls,
                                                                        Client client,
                                                                        std::string image);

/// Carries out the order: inspects the image, pulls it if necessary, and inspects it again. Errors
/// name the image and quote the engine.
boost::asio::awaitable<Result<ReadyImage>> have_image(
    EngineCalls& calls, wire::ImageOrder order,
    std::function<void(const wire::ImageProgress&)> on_progress, bool& pulled);

/// Progress text, "pulling X: 3 of 7 layers downloaded ...", from the lines that `docker pull`
/// prints without a terminal.
class PullProgress {
 public:
  void take(std::string_view line);
  std::string text(const std::string& image) const;

 private:
  std::vector<std::string> layers_, loaded_, ready_;
  std::string last_;
};

}  // namespace sortie::runner::container
