#include "launcher/copy/image_archive.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "common/base/fd.h"
#include "common/base/hex.h"
#include "launcher/host/sha256.h"
#include "launcher/local/child_process.h"

namespace sortie::launcher {
namespace asio = boost::asio;
using Json = nlohmann::json;

namespace {

constexpr std::uint64_t kTarBlock = 512;
constexpr std::size_t kMaxParts = 100'000;
constexpr std::uint64_t kMaxText = 16u << 20;  // limit of a manifest or a configuration
constexpr std::size_t kChunk = 1u << 20;

struct Header {
  char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8], type, link[100],
      magic[6], version[2], user[32], group[32], major[8], minor[8], prefix[155], rest[12];
};
static_assert(sizeof(Header) == kTarBlock);

std::string field(const char* text, std::size_t size) {
  return std::string(text, ::strnlen(text, size));
}

/// Parses a number: octal, or big-endian binary if the first bit is set.
std::optional<std::uint64_t> number(const char* text, std::size_t size) {
  std::uint64_t value = 0;
  if (static_cast<unsigned char>(text[0]) & 0x80) {
    for (std::size_t i = size - 8; i < size; ++i)
      value = value << 8 | static_cast<unsigned char>(text[i]);
    return value >> 62 ? std::nullopt : std::optional(value);
  }
  for (std::size_t i = 0; i < size && text[i] != '\0' && text[i] != ' '; ++i) {
    if (text[i] < '0' || text[i] > '7') return std::nullopt;
    value = value * 8 + static_cast<std::uint64_t>(text[i] - '0');
  }
  return value;
}

/// Returns the value of `key` in a PAX header: records "LENGTH KEY=VALUE\n".
std::string pax_value(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const std::size_t space = text.find(' ');
    const std::size_t length = space == text.npos ? 0 : std::strtoul(text.data(), nullptr, 10);
    if (length <= space + 1 || length > text.size()) return "";
    const std::string_view record = text.substr(space + 1, length - space - 2);
    if (record.starts_with(key) && record.substr(key.size()).starts_with('='))
      return std::string(record.substr(key.size() + 1));
    text.remove_prefix(length);
  }
  return "";
}

Result<std::string> read_at(int fd, std::uint64_t offset, std::uint64_t size) {
  std::string bytes(size, '\0');
  std::uint64_t got = 0;
  while (got < size) {
    const ssize_t count =
        ::pread(fd, bytes.data() + got, size - got, static_cast<off_t>(offset + got));
    if (count <= 0) return fail(ErrorCode::io, "the archive is truncated");
    got += static_cast<std::uint64_t>(count);
  }
  return bytes;
}

Result<> write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return std::unexpected(os_error(errno, "write"));
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return {};
}

/// Digest in the format of image manifests.
std::string digest_of(std::string_view text) {
  return "sha256:" + hex(sha256(text));
}

std::unexpected<Error> no_image(std::string_view why) {
  return fail(ErrorCode::data,
              fmt::format("Sortie can not read the image that the engine saved: {}", why));
}

std::string normal(const std::string& name) {
  std::string text = std::filesystem::path(name).lexically_normal().string();
  while (text.ends_with('/')) text.pop_back();
  return text;
}

}  // namespace

asio::awaitable<Result<ImageArchive>> ImageArchive::save(
    asio::any_io_executor executor, std::vector<std::string> save, std::string folder,
    std::function<void(std::uint64_t)> on_bytes) {
  const std::string path = folder + "/image.tar";
  const Fd file(::open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC | O_TRUNC, 0600));
  if (!file) co_return std::unexpected(os_error(errno, path));
  const std::string program = save.front(), image = save.back();
  auto child = ChildProcess::start(executor, std::move(save), OnClose::kill);
  if (!child) co_return std::unexpected(std::move(child).error());
  std::array<char, 64u << 10> buffer;
  std::uint64_t bytes = 0;
  for (;;) {
    const std::span<char> space(buffer);
    const auto count = co_await (*child)->read_some(space);
    if (!count) co_return std::unexpected(count.error());
    if (*count == 0) break;
    const Result<> written = write_all(file.get(), {buffer.data(), *count});
    if (!written) co_return std::unexpected(with_context(written.error(), path));
    bytes += *count;
    on_bytes(bytes);
  }
  const auto status = co_await (*child)->wait();
  if (!status) co_return std::unexpected(status.error());
  if (!status->success()) {
    std::string said = (*child)->stderr_tail();
    while (said.ends_with('\n')) said.pop_back();
    co_return fail(ErrorCode::not_found,
                   fmt::format("image {}: {} can not save it: {}; build or pull it on this "
                               "machine, or name the engine that has it with --from",
                               image, program, said.empty() ? status->to_string() : said));
  }
  co_return open(path);
}

Result<ImageArchive> ImageArchive::open(std::string path) {
  ImageArchive archive;
  archive.path_ = std::move(path);
  SORTIE_TRY(archive.read_parts());
  SORTIE_TRY(archive.read_manifest());
  return archive;
}

Result<> ImageArchive::read_parts() {
  const Fd file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (!file || ::fstat(file.get(), &info) != 0) return std::unexpected(os_error(errno, path_));
  bytes_ = static_cast<std::uint64_t>(info.st_size);
  Part part;
  std::string long_name, long_link, long_size;
  bool begun = false;
  for (std::uint64_t at = 0; at + kTarBlock <= bytes_;) {
    SORTIE_ASSIGN_OR_RETURN(const std::string block, read_at(file.get(), at, kTarBlock));
    Header header;
    std::memcpy(&header, block.data(), kTarBlock);
    if (header.name[0] == '\0') break;  // end of archive
    auto size = number(header.size, sizeof header.size);
    if (!begun) part.offset = at;
    begun = true;
    const bool special =
        header.type == 'x' || header.type == 'g' || header.type == 'L' || header.type == 'K';
    if (!special && !long_size.empty()) size = std::strtoull(long_size.c_str(), nullptr, 10);
    if (!size || *size > bytes_ - at - kTarBlock) return no_image("a broken tar header");
    const std::uint64_t content = at + kTarBlock;
    at = content + (*size + kTarBlock - 1) / kTarBlock * kTarBlock;
    if (special) {
      if (*size > kMaxText) return no_image("a tar header that is too large");
      SORTIE_ASSIGN_OR_RETURN(const std::string text, read_at(file.get(), content, *size));
      if (header.type == 'L') long_name = text.c_str();
      if (header.type == 'K') long_link = text.c_str();
      if (header.type == 'x') {
        if (std::string path = pax_value(text, "path"); !path.empty()) long_name = path;
        if (std::string link = pax_value(text, "linkpath"); !link.empty()) long_link = link;
        long_size = pax_value(text, "size");
      }
      continue;
    }
    const std::string prefix = std::string_view(header.magic, 5) == "ustar" && header.magic[5] == 0
                                   ? field(header.prefix, sizeof header.prefix)
                                   : "";
    part.name = field(header.name, sizeof header.name);
    if (!prefix.empty()) part.name = prefix + "/" + part.name;
    if (!long_name.empty()) part.name = long_name;
    part.name = normal(part.name);
    const bool link = header.type == '1' || header.type == '2';
    part.link = !link ? "" : long_link.empty() ? field(header.link, sizeof header.link) : long_link;
    if (header.type == '2' && !part.link.empty() && !part.link.starts_with('/'))
      part.link = (std::filesystem::path(part.name).parent_path() / part.link).string();
    part.link = part.link.empty() ? "" : normal(part.link);
    part.bytes = std::min(at, bytes_) - part.offset;
    part.content = content;
    part.content_bytes = link ? 0 : *size;
    if (parts_.size() >= kMaxParts) return no_image("too many files");
    parts_.push_back(part);
    part = {};
    long_name.clear();
    long_link.clear();
    long_size.clear();
    begun = false;
  }
  return {};
}

Result<std::string> ImageArchive::content_of(const std::string& name) const {
  const auto found = std::ranges::find(parts_, normal(name), &Part::name);
  if (found == parts_.end() || found->content_bytes > kMaxText)
    return no_image(fmt::format("{} is not in it", name));
  const Fd file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return std::unexpected(os_error(errno, path_));
  return read_at(file.get(), found->content, found->content_bytes);
}

Result<> ImageArchive::read_manifest() {
  SORTIE_ASSIGN_OR_RETURN(const std::string text, content_of("manifest.json"));
  const Json manifest = Json::parse(text, nullptr, false);
  if (!manifest.is_array() || manifest.size() != 1 || !manifest[0].is_object())
    return no_image("its manifest is not that of one image");
  const auto strings = [](const Json& object, const char* key) {
    std::vector<std::string> list;
    if (const auto found = object.find(key); found != object.end() && found->is_array())
      for (const Json& item : *found)
        if (item.is_string()) list.push_back(item.get<std::string>());
    return list;
  };
  layers_ = strings(manifest[0], "Layers");
  const auto config = manifest[0].find("Config");
  if (config == manifest[0].end() || !config->is_string())
    return no_image("its manifest names no configuration");
  SORTIE_ASSIGN_OR_RETURN(const std::string config_text, content_of(config->get<std::string>()));
  image_id_ = digest_of(config_text);
  const Json parsed = Json::parse(config_text, nullptr, false);
  if (parsed.is_object() && parsed.contains("rootfs") && parsed["rootfs"].is_object())
    diff_ids_ = strings(parsed["rootfs"], "diff_ids");
  if (diff_ids_.size() != layers_.size() || layers_.empty())
    return no_image("its configuration has other layers than its manifest");
  return {};
}

std::vector<std::string> ImageArchive::names_of(const std::string& layer) const {
  std::vector<std::string> names;
  std::string name = normal(layer);
  for (int depth = 0; depth < 8 && !name.empty(); ++depth) {
    names.push_back(name);
    const auto found = std::ranges::find(parts_, name, &Part::name);
    name = found == parts_.end() ? "" : found->link;
  }
  return names;
}

asio::awaitable<Result<>> ImageArchive::write_without(
    std::size_t layers, std::string path,
    std::function<void(std::uint64_t, std::uint64_t)> on_bytes) const {
  std::set<std::string> needed, left_out;
  for (std::size_t i = layers; i < layers_.size(); ++i)
    for (std::string& name : names_of(layers_[i])) needed.insert(std::move(name));
  for (std::size_t i = 0; i < std::min(layers, layers_.size()); ++i)
    for (std::string& name : names_of(layers_[i]))
      if (!needed.contains(name)) left_out.insert(std::move(name));
  std::uint64_t written_bytes = 0, all_bytes = 0;
  for (const Part& part : parts_)
    if (!left_out.contains(part.name)) all_bytes += part.bytes;
  const auto executor = co_await asio::this_coro::executor;
  const Fd in(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  const Fd out(::open(path.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600));
  if (!in || !out) co_return std::unexpected(os_error(errno, path));
  for (const Part& part : parts_) {
    if (left_out.contains(part.name)) continue;
    for (std::uint64_t done = 0; done < part.bytes; done += kChunk) {
      const auto bytes =
          read_at(in.get(), part.offset + done, std::min<std::uint64_t>(kChunk, part.bytes - done));
      if (!bytes) co_return std::unexpected(bytes.error());
      const Result<> written = write_all(out.get(), *bytes);
      if (!written) co_return std::unexpected(with_context(written.error(), path));
      written_bytes += bytes->size();
      if (on_bytes) on_bytes(written_bytes, all_bytes);
      co_await asio::post(executor, asio::use_awaitable);
    }
  }
  const std::string end(2 * kTarBlock, '\0');
  co_return write_all(out.get(), end);
}

}  // namespace sortie::launcher
