#include "runner/content.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <charconv>
#include <filesystem>

#include "common/base/boot_clock.h"
#include "common/base/fd.h"
#include "common/base/hex.h"
#include "common/files/piece.h"

namespace sortie::runner {
namespace {

constexpr const char* kOwnFile = "/proc/self/exe";
constexpr const char* kNote = "user.sortie.content";
/// How long a note is valid. Damage by the disk, without a write, is found within that time.
constexpr std::int64_t kNoteMs = 3'600'000;
/// Fits into a core's own cache together with the state of the hash.
constexpr std::size_t kPieceBytes = 128u << 10;

std::string boot_id() {
  const Fd file(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  char text[64];
  const ssize_t count = file ? ::read(file.get(), text, sizeof text) : 0;
  return {text, count > 0 ? static_cast<std::size_t>(count - 1) : 0};
}

/// Identifies the file's state in a note; the time of the check follows.
std::string note_head(const struct stat& file, const std::string& xxh3) {
  return fmt::format("{} {} {} {}.{} {} ", xxh3, file.st_ino, file.st_size, file.st_mtim.tv_sec,
                     file.st_mtim.tv_nsec, boot_id());
}

bool has_note(int file, const std::string& head) {
  char text[256];
  const ssize_t count = ::fgetxattr(file, kNote, text, sizeof text);
  if (count <= static_cast<ssize_t>(head.size())) return false;
  std::string_view note(text, static_cast<std::size_t>(count));
  if (!note.starts_with(head)) return false;
  note.remove_prefix(head.size());
  std::int64_t then = 0;
  const auto read = std::from_chars(note.data(), note.data() + note.size(), then);
  const std::int64_t age = boot_ms() - then;
  return read.ec == std::errc{} && read.ptr == note.data() + note.size() && age >= 0 &&
         age < kNoteMs;
}

/// Reads the file in pieces, because mapping a page costs more than copying it. Empty if the file
/// can not be read.
std::string xxh3_of(int file) {
  alignas(64) static char bytes[kPieceBytes];
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  off_t at = 0;
  for (ssize_t count; (count = ::pread(file, bytes, sizeof bytes, at)) != 0; at += count) {
    if (count < 0) return {};
    XXH3_64bits_update(&state, bytes, static_cast<std::size_t>(count));
  }
  return fmt::format("{:016x}", XXH3_64bits_digest(&state));
}

bool has_sha256(int file, std::size_t size, std::string_view hash) {
  void* bytes = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
  if (bytes == MAP_FAILED) return false;
  const bool good = hex(files::hash_bytes({static_cast<const char*>(bytes), size})) == hash;
  ::munmap(bytes, size);
  return good;
}

}  // namespace

std::string installed_hash() {
  char path[4096];
  const ssize_t length = ::readlink(kOwnFile, path, sizeof path);
  std::string_view name(path, length > 0 ? static_cast<std::size_t>(length) : 0);
  name.remove_prefix(name.rfind('/') == std::string_view::npos ? 0 : name.rfind('/') + 1);
  constexpr std::string_view kPrefix = "runner-";
  if (!name.starts_with(kPrefix)) return {};
  return std::string(name.substr(kPrefix.size()));
}

Result<> check_content(std::string_view hash, const std::string& xxh3) {
  const bool is_hash = hash.size() == 64 && hash.find_first_not_of("0123456789abcdef") == hash.npos;
  if (!is_hash) return {};  // a developer's build
  const Fd file(::open(kOwnFile, O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (!file || ::fstat(file.get(), &info) != 0) return std::unexpected(os_error(errno, kOwnFile));
  if (!xxh3.empty() && has_note(file.get(), note_head(info, xxh3))) return {};
  const std::string found = xxh3_of(file.get());
  const bool good = xxh3.empty()
                        ? has_sha256(file.get(), static_cast<std::size_t>(info.st_size), hash)
                        : found == xxh3;
  if (good) {
    const std::string note = fmt::format("{}{}", note_head(info, found), boot_ms());
    // If this fails, the next start reads the file again.
    (void)::fsetxattr(file.get(), kNote, note.data(), note.size(), 0);
    return {};
  }
  std::error_code ignored;
  std::filesystem::remove(std::filesystem::read_symlink(kOwnFile, ignored), ignored);
  return fail(ErrorCode::data,
              "sortie-runner: its hash does not match its name: it was damaged on this disk and "
              "has been removed; the next start sends it again");
}

void mark_in_use() {
  if (installed_hash().empty()) return;
  // Does not change the modification time, which would invalidate the notes about the content.
  const timespec times[] = {{.tv_sec = 0, .tv_nsec = UTIME_NOW},
                            {.tv_sec = 0, .tv_nsec = UTIME_OMIT}};
  ::utimensat(AT_FDCWD, kOwnFile, times, 0);
}

}  // namespace sortie::runner
