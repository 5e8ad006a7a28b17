#include "launcher/ssh/known_hosts.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "common/base/atomic_file.h"
#include "common/base/fd.h"
#include "common/base/split.h"
#include "launcher/host/sha256.h"
#include "launcher/ssh/base64.h"
#include "launcher/ssh/pattern.h"

namespace sortie::launcher::ssh {
namespace {

constexpr std::size_t kMaxKnownHostsBytes = 64u << 20;

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

std::string_view next_word(std::string_view& line) {
  const std::size_t start = line.find_first_not_of(" \t\r");
  if (start == std::string_view::npos) return line = {};
  line.remove_prefix(start);
  const std::size_t end = std::min(line.find_first_of(" \t\r"), line.size());
  const std::string_view word = line.substr(0, end);
  line.remove_prefix(end);
  return word;
}

// "|1|base64 salt|base64 HMAC-SHA1 of the name with that salt"
bool hashed_name_is(std::string_view hashed, std::string_view name) {
  const std::size_t middle = hashed.find('|', 3);
  if (middle == std::string_view::npos) return false;
  const std::string salt = base64_decode(hashed.substr(3, middle - 3));
  const std::string expected = base64_decode(hashed.substr(middle + 1));
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  if (salt.empty() || !HMAC(EVP_sha1(), salt.data(), static_cast<int>(salt.size()), bytes_of(name),
                            name.size(), digest, &length))
    return false;
  return expected == std::string_view(reinterpret_cast<char*>(digest), length);
}

}  // namespace

std::string fingerprint(const HostKey& key) {
  std::string text = base64_encode(sha256(key.blob));
  while (text.ends_with('=')) text.pop_back();
  return "SHA256:" + text;
}

bool KnownHostEntry::covers(const std::string& name) const {
  if (patterns.size() == 1 && patterns.front().starts_with("|1|"))
    return hashed_name_is(patterns.front(), lower(name));
  return matches_pattern_list(name, patterns);
}

std::vector<KnownHostEntry> parse_known_hosts(std::string_view text,
                                              const std::filesystem::path& file) {
  std::vector<KnownHostEntry> entries;
  for (int number = 1; !text.empty(); ++number) {
    std::string_view line = take_line(text);

    KnownHostEntry entry{file, number, false, {}, {}};
    std::string_view names = next_word(line);
    if (names.empty() || names.starts_with('#')) continue;
    if (names.starts_with('@')) {
      // Skip certificate authorities: libssh does not ask servers for certificates.
      if (names != "@revoked") continue;
      entry.revoked = true;
      names = next_word(line);
    }
    entry.key.type = next_word(line);
    entry.key.blob = base64_decode(next_word(line));
    if (entry.key.type.empty() || entry.key.blob.empty()) continue;
    while (!names.empty()) {
      const std::size_t comma = std::min(names.find(','), names.size());
      entry.patterns.emplace_back(names.substr(0, comma));
      names.remove_prefix(std::min(comma + 1, names.size()));
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

Result<> KnownHosts::load(const std::vector<std::filesystem::path>& files) {
  std::vector<std::shared_ptr<const File>> loaded;
  for (const auto& path : files) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) {
      if (errno == ENOENT || errno == ENOTDIR) continue;
      return std::unexpected(os_error(errno, path.string(), ErrorCode::host_key));
    }
    if (!S_ISREG(status.st_mode)) continue;  // "UserKnownHostsFile /dev/null"
    const auto size = static_cast<std::uintmax_t>(status.st_size);
    const auto same = std::ranges::find_if(files_, [&](const auto& file) {
      return file->path == path && file->size == size &&
             file->modified.tv_sec == status.st_mtim.tv_sec &&
             file->modified.tv_nsec == status.st_mtim.tv_nsec;
    });
    if (same != files_.end()) {
      loaded.push_back(*same);
      continue;
    }
    auto text = read_file(path, kMaxKnownHostsBytes);
    if (!text) return fail(ErrorCode::host_key, std::move(text).error().message);
    loaded.push_back(std::make_shared<const File>(
        File{path, status.st_mtim, size, parse_known_hosts(*text, path)}));
  }
  files_ = std::move(loaded);
  return {};
}

HostKeyCheck KnownHosts::check(const std::string& name, const HostKey& key) const {
  HostKeyCheck result;
  for (const auto& file : files_) {
    for (const KnownHostEntry& entry : file->entries) {
      const bool same_key = entry.key.blob == key.blob;
      // A known key is trusted only if no file revokes it, so the search continues after a match.
      const bool matters = same_key || entry.key.type == key.type
                               ? result.verdict != HostKeyVerdict::known || entry.revoked
                               : result.verdict == HostKeyVerdict::unknown;
      if (!matters || (entry.revoked && !same_key) || !entry.covers(name)) continue;
      const std::string place = fmt::format("{}:{}", entry.file.string(), entry.line);
      if (entry.revoked) return {HostKeyVerdict::revoked, place};
      if (same_key) {
        result = {HostKeyVerdict::known, place};
      } else if (entry.key.type != key.type) {
        result = {HostKeyVerdict::other_type, place};
      } else if (result.verdict != HostKeyVerdict::changed) {
        result = {HostKeyVerdict::changed, place};
      }
    }
  }
  return result;
}

HostKeyCheck KnownHosts::check(const std::string& name, const std::string& name_without_port,
                               const HostKey& key) const {
  HostKeyCheck result = check(name, key);
  if (result.verdict != HostKeyVerdict::unknown || name_without_port.empty()) return result;
  // Another key there is no contradiction: it may be that of the server at port 22.
  HostKeyCheck other = check(name_without_port, key);
  const bool decides =
      other.verdict == HostKeyVerdict::known || other.verdict == HostKeyVerdict::revoked;
  return decides ? other : result;
}

std::vector<std::string> KnownHosts::key_types(const std::string& name) const {
  std::vector<std::string> types;
  for (const auto& file : files_)
    for (const KnownHostEntry& entry : file->entries)
      if (!entry.revoked && std::ranges::find(types, entry.key.type) == types.end() &&
          entry.covers(name))
        types.push_back(entry.key.type);
  return types;
}

Result<> record_host_key(const std::filesystem::path& file, const std::string& name,
                         const HostKey& key) {
  const auto failed = [&](std::string_view what) {
    return std::unexpected(
        os_error(errno, fmt::format("{} {}", what, file.string()), ErrorCode::host_key));
  };
  const auto parent = file.parent_path();
  if (!parent.empty() && ::mkdir(parent.c_str(), 0700) != 0 && errno != EEXIST)
    return failed("create the folder of");
  Fd fd(::open(file.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!fd) return failed("open");
  std::string line = fmt::format("{} {} {}\n", name, key.type, base64_encode(key.blob));
  struct stat status {};
  char last = '\n';
  if (::fstat(fd.get(), &status) == 0 && status.st_size > 0 &&
      ::pread(fd.get(), &last, 1, status.st_size - 1) == 1 && last != '\n')
    line.insert(0, "\n");
  if (::write(fd.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size()))
    return failed("append to");
  return {};
}

}  // namespace sortie::launcher::ssh
