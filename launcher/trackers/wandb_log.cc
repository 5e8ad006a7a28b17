#include "launcher/trackers/wandb_log.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/crc.hpp>
#include <cerrno>

#include "common/base/atomic_file.h"
#include "common/base/file_lock.h"

namespace sortie::launcher {
namespace {

constexpr std::uint64_t kLogBlock = 32768;
constexpr std::uint64_t kPartHeader = 7;
constexpr std::size_t kMaxLogBytes = std::size_t{1} << 30;

enum PartType : unsigned char { kWhole = 1, kFirst = 2, kMiddle = 3, kLast = 4 };

std::uint32_t part_crc(unsigned char type, std::string_view bytes) {
  boost::crc_32_type crc;
  crc.process_byte(type);
  crc.process_bytes(bytes.data(), bytes.size());
  return crc.checksum();
}

void put(std::string& out, std::uint32_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>((value >> (8 * i)) & 0xff));
}

std::uint32_t get(std::string_view bytes, std::size_t at, int count) {
  std::uint32_t value = 0;
  for (int i = 0; i < count; ++i)
    value |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
  return value;
}

}  // namespace

std::string wandb_file_header() {
  return {":W&B\xe1\xbe\0", 7};
}

std::string wandb_frame(std::string_view record, std::uint64_t offset) {
  std::string out;
  bool first = true;
  do {
    std::uint64_t left = kLogBlock - (offset + out.size()) % kLogBlock;
    if (left < kPartHeader) {
      out.append(left, '\0');
      left = kLogBlock;
    }
    const std::string_view part = record.substr(0, left - kPartHeader);
    const bool last = part.size() == record.size();
    const unsigned char type = first ? (last ? kWhole : kFirst) : (last ? kLast : kMiddle);
    put(out, part_crc(type, part), 4);
    put(out, static_cast<std::uint32_t>(part.size()), 2);
    out.push_back(static_cast<char>(type));
    out += part;
    record.remove_prefix(part.size());
    first = false;
  } while (!record.empty());
  return out;
}

std::uint64_t scan_wandb_file(std::string_view bytes,
                              const std::function<void(std::uint64_t, std::string_view)>& record) {
  const std::string header = wandb_file_header();
  if (!bytes.starts_with(header)) return 0;
  std::uint64_t at = header.size(), good = at, begin = at;
  std::string whole;
  bool inside = false;
  while (true) {
    const std::uint64_t left = kLogBlock - at % kLogBlock;
    if (left < kPartHeader) {
      at += left;
      continue;
    }
    if (at + kPartHeader > bytes.size()) return good;
    const std::uint64_t length = get(bytes, at + 4, 2);
    const auto type = static_cast<unsigned char>(bytes[at + 6]);
    if (kPartHeader + length > left || at + kPartHeader + length > bytes.size()) return good;
    const std::string_view part = bytes.substr(at + kPartHeader, length);
    const bool starts = type == kWhole || type == kFirst;
    if (type < kWhole || type > kLast || starts == inside ||
        part_crc(type, part) != get(bytes, at, 4))
      return good;
    if (starts) {
      begin = at;
      whole.clear();
    }
    whole += part;
    inside = type == kFirst || type == kMiddle;
    at += kPartHeader + length;
    if (inside) continue;
    record(begin, whole);
    good = at;
  }
}

Result<WandbLog> WandbLog::open(const std::filesystem::path& path) {
  WandbLog log;
  log.path_ = path;
  log.file_.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!log.file_) return std::unexpected(os_error(errno, path.string()));
  if (!lock_file_or_none(log.file_.get(), LOCK_EX))
    return fail(ErrorCode::io, fmt::format("{}: another run is writing it; give each of the two a "
                                           "trainer.save_dir of its own",
                                           path.string()));
  struct stat info {};
  if (::fstat(log.file_.get(), &info) != 0) return std::unexpected(os_error(errno, path.string()));
  log.size_ = static_cast<std::uint64_t>(info.st_size);
  if (log.size_ == 0) SORTIE_TRY(log.write(wandb_file_header()));
  return log;
}

Result<std::string> WandbLog::read() const {
  return read_file(path_, kMaxLogBytes);
}

Result<> WandbLog::cut(std::uint64_t offset) {
  if (::ftruncate(file_.get(), static_cast<off_t>(offset)) != 0)
    return std::unexpected(os_error(errno, path_.string()));
  size_ = offset;
  return {};
}

Result<> WandbLog::append(std::string_view record) {
  return write(wandb_frame(record, size_));
}

Result<> WandbLog::write(std::string_view bytes) {
  const ssize_t count =
      ::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(size_));
  if (count == static_cast<ssize_t>(bytes.size())) {
    size_ += bytes.size();
    return {};
  }
  const int error = count < 0 ? errno : ENOSPC;
  if (count > 0 && ::ftruncate(file_.get(), static_cast<off_t>(size_)) != 0)
    return std::unexpected(os_error(errno, path_.string()));
  return std::unexpected(os_error(error, path_.string()));
}

}  // namespace sortie::launcher
