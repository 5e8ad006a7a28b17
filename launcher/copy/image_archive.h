// ImageArchive: an image as its engine saved it, one tar file here, and parts of it without the
// layers that a host has already.
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
  /// What is between one header and the next, headers that belong to it included.
  struct Part {
    std::string name, link;                        // link: of a symlink or a hard link
    std::uint64_t offset = 0, bytes = 0;           // with headers and padding
    std::uint64_t content = 0, content_bytes = 0;  // where its content begins
  };

  /// Runs `save` (argv of an engine's client) into a new file in `folder`; `on_bytes` is told how
  /// much there is. Errors: the client's own words.
  static boost::asio::awaitable<Result<ImageArchive>> save(
      boost::asio::any_io_executor executor, std::vector<std::string> save, std::string folder,
      std::function<void(std::uint64_t)> on_bytes);
  /// Reads what is in the archive at `path`.
  static Result<ImageArchive> open(std::string path);

  const std::string& path() const { return path_; }
  std::uint64_t bytes() const { return bytes_; }
  /// "sha256:<hex>" of the image's configuration.
  const std::string& image_id() const { return image_id_; }
  const std::vector<std::string>& diff_ids() const { return diff_ids_; }

  /// Writes to `path` what remains without the first `layers` layers. Others get their turn
  /// meanwhile.
  boost::asio::awaitable<Result<>> write_without(std::size_t layers, std::string path) const;

 private:
  Result<> read_parts();
  Result<> read_manifest();
  Result<std::string> content_of(const std::string& name) const;
  /// Names of the parts that hold one layer: its file, and where a link of it leads.
  std::vector<std::string> names_of(const std::string& layer) const;

  std::string path_, image_id_;
  std::uint64_t bytes_ = 0;
  std::vector<Part> parts_;
  std::vector<std::string> layers_, diff_ids_;  // in order, the first one at the bottom
};

}  // namespace sortie::launcher
