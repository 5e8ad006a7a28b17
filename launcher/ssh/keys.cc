#include "launcher/ssh/keys.h"

#include <fmt/core.h>
#include <libssh/libssh.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/base/atomic_file.h"
#include "launcher/ssh/base64.h"
#include "launcher/ssh/known_hosts.h"

namespace sortie::launcher::ssh {
namespace {

constexpr std::size_t kMaxKeyBytes = 1u << 20;

// libssh calls this for an encrypted key. Sortie never prompts.
int refuse_passphrase(const char*, char*, size_t, int, int, void* asked) {
  *static_cast<bool*>(asked) = true;
  return -1;
}

std::string blob_of(ssh_key key) {
  char* text = nullptr;
  if (ssh_pki_export_pubkey_base64(key, &text) != SSH_OK) return "";
  std::string blob = base64_decode(text);
  ssh_string_free_char(text);
  return blob;
}

Identity read_identity(const std::filesystem::path& file) {
  Identity identity;
  identity.file = file;
  struct stat status {};
  const bool exists = ::stat(file.c_str(), &status) == 0;
  if (!exists) {
    identity.problem = strerrordesc_np(errno);
  } else if (status.st_uid == ::getuid() && (status.st_mode & 077) != 0) {
    // Like ssh, reject the user's key that others can read. Another user's key, readable through a
    // group, is that user's decision.
    identity.problem = fmt::format("is open to others (mode {:04o}); chmod 600 it",
                                   static_cast<unsigned>(status.st_mode & 07777));
  } else if (const auto text = read_file(file, kMaxKeyBytes); !text) {
    identity.problem = text.error().message;
  } else {
    bool asked = false;
    ssh_key key = nullptr;
    if (ssh_pki_import_privkey_base64(text->c_str(), nullptr, refuse_passphrase, &asked, &key) ==
        SSH_OK) {
      identity.private_key.reset(key);
      ssh_key public_key = nullptr;
      if (ssh_pki_export_privkey_to_pubkey(key, &public_key) == SSH_OK)
        identity.public_key.reset(public_key);
    } else if (asked) {
      identity.problem =
          fmt::format("needs a passphrase; add it to the agent with `ssh-add {}`", file.string());
    } else {
      identity.problem = "is not a private key that libssh can read";
    }
  }
  if (!identity.public_key) {
    ssh_key key = nullptr;
    if (ssh_pki_import_pubkey_file((file.string() + ".pub").c_str(), &key) == SSH_OK)
      identity.public_key.reset(key);
  }
  if (identity.public_key) identity.public_blob = blob_of(identity.public_key.get());
  identity.missing = !exists && !identity.public_key;
  return identity;
}

}  // namespace

void KeyDeleter::operator()(ssh_key_struct* key) const {
  ssh_key_free(key);
}

const Identity& KeyStore::load(const std::filesystem::path& file) {
  const auto found = identities_.find(file);
  if (found != identities_.end()) return found->second;
  return identities_.emplace(file, read_identity(file)).first->second;
}

}  // namespace sortie::launcher::ssh
