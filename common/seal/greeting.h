// Handshake of two ends of a connection that share a key. Each end sends a greeting. Record keys,
// one per direction, are derived from the shared key, the random bytes of both ends and the ciphers
// that both offered. So an altered greeting leads to different keys, and a record can neither be
// replayed in another connection nor be reflected to its sender.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "common/seal/record_cipher.h"

namespace sortie::seal {

inline constexpr std::size_t kSharedKeyBytes = 32;

/// The best cipher that the sender supports (1 byte), then random bytes.
using Greeting = std::array<unsigned char, 33>;

/// The roles of the two ends; both must agree on them.
enum class End : unsigned char { first = 1, second = 2 };

Greeting make_greeting(CipherKind best);

/// Keys `seals` and `opens` once both greetings are known. `key` has kSharedKeyBytes and may be
/// used for many connections. `purpose` is a text that both ends know: the same key gives different
/// record keys for different purposes.
void begin_records(RecordCipher& seals, RecordCipher& opens, std::string_view purpose,
                   std::string_view key, End self, const Greeting& mine, const Greeting& theirs);

}  // namespace sortie::seal
