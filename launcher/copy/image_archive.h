// ImageArchive: a container image as saved by its engine, a tar file on this machine. Can write
// copies without the layers that a host already has.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace sortie::launcher {

class ImageArchive {
 public:
  /// One entry of the tar file with all headers that belong to it.
  struct Part {
    std::string name, link;                        // link: target of a symlink or hard link
    std::uint64_t offset = 0, bytes = 0;           // including headers and padding
    std::uint64_t content = 0, content_bytes = 0;  // position of its content
  };

  /// Runs `save` (argv of an engine's client) and writes its output to a new file in `folder`.
  /// `on_bytes` is called with the number of bytes so far. An error has the message of the client.
  static boost::asio::awaitable<Result<ImageArchive>> save(
      boost::asio::any_io_executor executor, std::vector<std::string> save, std::string folder,
      std::function<void(std::uint64_t)> on_bytes);
  /// Reads the table of contents of the archive at `path`.
  static Result<ImageArchive> open(std::string path);

  const std::string& path() const { return path_; }
  std::uint64_t bytes() const { return bytes_; }
  /// "sha256:<hex>" of the image's configuration.
  const std::string& image_id() const { return image_id_; }
  const std::vector<std::string>& diff_ids() const { return diff_ids_; }

  /// Writes the archive without its first `layers` layers to `path`. Yields to other coroutines
  /// meanwhile. Calls `on_bytes`, if not empty, with the number of bytes so far and of all.
  boost::asio::awaitable<Result<>> write_without(
      std::size_t layers, std::string path,
      std::function<void(std::uint64_t, std::uint64_t)> on_bytes = nullptr) const;

 private:
  Result<> read_parts();
  Result<> read_manifest();
  Result<std::string> content_of(const std::string& name) const;
  /// Names of the parts of one layer: its file and the targets of its links.
  std::vector<std::string> names_of(const std::string& layer) const;

  std::string path_, image_id_;
  std::uint64_t bytes_ = 0;
  std::vector<Part> parts_;
  std::vector<std::string> layers_, diff_ids_;  // in order, from the bottom
};

}  // namespace sortie::launcher
