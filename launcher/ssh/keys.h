// KeyStore: the user's private keys, read and decoded once for all hosts.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

struct ssh_key_struct;

namespace sortie::launcher::ssh {

struct KeyDeleter {
  void operator()(ssh_key_struct* key) const;
};
using KeyPtr = std::unique_ptr<ssh_key_struct, KeyDeleter>;

/// Contents of an identity file.
struct Identity {
  std::filesystem::path file;
  KeyPtr private_key;       // nullptr: see problem
  KeyPtr public_key;        // from the private key, else from FILE.pub; nullptr if neither exists
  std::string public_blob;  // wire form of public_key, to find it in the agent
  std::string problem;      // why there is no private key: "no such file", "needs a passphrase" ...
  bool missing = false;     // neither FILE nor FILE.pub exists
};

class KeyStore {
 public:
  /// Reads a key file. Never fails and never prompts: an unusable file gives an Identity with a
  /// problem. Results are cached.
  const Identity& load(const std::filesystem::path& file);

 private:
  std::map<std::filesystem::path, Identity> identities_;
};

}  // namespace sortie::launcher::ssh
