// The known_hosts files: parsed once, looked up per host. Independent of libssh: a key is a type
// name and its wire blob.
#pragma once

#include <ctime>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace sortie::launcher::ssh {

struct HostKey {
  std::string type;  // "ssh-ed25519"
  std::string blob;  // the public key in wire form
};

/// "SHA256:..." as ssh-keygen -l prints it.
std::string fingerprint(const HostKey& key);

struct KnownHostEntry {
  std::filesystem::path file;
  int line = 0;
  bool revoked = false;
  std::vector<std::string> patterns;  // or a single hashed name, "|1|salt|hash"
  HostKey key;

  /// Whether the entry applies to `name`.
  bool covers(const std::string& name) const;
};

enum class HostKeyVerdict {
  known,
  unknown,     // no entry for this name
  other_type,  // entries for this name, none with a key of this type
  changed,     // an entry for this name has a different key of this type
  revoked,     // marked @revoked
};

struct HostKeyCheck {
  HostKeyVerdict verdict = HostKeyVerdict::unknown;
  std::string place;  // "file:line" of the decisive entry
};

/// The entries of the files. A file is read again if it has changed. A missing file has no entries.
class KnownHosts {
 public:
  /// Loads the files. ErrorCode::host_key if a file exists but can not be read.
  Result<> load(const std::vector<std::filesystem::path>& files);

  /// `name`: "host", or "[host]:port" if the port is not 22.
  HostKeyCheck check(const std::string& name, const HostKey& key) const;
  /// As `check`; if the name is unknown, an entry for `name_without_port` (not empty) makes the key
  /// known or revoked. OpenSSH accepts a host at another port by such an entry, too.
  HostKeyCheck check(const std::string& name, const std::string& name_without_port,
                     const HostKey& key) const;
  /// Returns the types of the known keys of a name, in file order.
  std::vector<std::string> key_types(const std::string& name) const;

 private:
  struct File {
    std::filesystem::path path;
    std::timespec modified{};
    std::uintmax_t size = 0;
    std::vector<KnownHostEntry> entries;
  };
  std::vector<std::shared_ptr<const File>> files_;  // files of the last load()
};

/// Parses the text of a file. Invalid lines are ignored, as in OpenSSH.
std::vector<KnownHostEntry> parse_known_hosts(std::string_view text,
                                              const std::filesystem::path& file);

/// Appends "name type key" in one write, so that several processes may append concurrently. Creates
/// the file (0600) and its folder (0700).
Result<> record_host_key(const std::filesystem::path& file, const std::string& name,
                         const HostKey& key);

}  // namespace sortie::launcher::ssh
