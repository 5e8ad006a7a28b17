// How two ends of a connection that share a key begin to seal: each sends a greeting, and keys of
// records are made of the shared key, of random bytes of both ends and of the ciphers that both
// have offered, one for each direction. So an altered greeting leads to other keys, and no record
// of one connection is one of another, or can be turned back on its sender.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "common/seal/record_cipher.h"

namespace sortie::seal {

inline constexpr std::size_t kSharedKeyBytes = 32;

/// The best cipher that its sender has, and random bytes.
using Greeting = std::array<unsigned char, 33>;

/// The two ends of a connection are told apart by who does what; both must agree on it.
enum class End : unsigned char { first = 1, second = 2 };

Greeting make_greeting(CipherKind best);

/// When both greetings are known. `key` has kSharedKeyBytes and may serve for many connections;
/// `purpose` is a text that both ends know: equal keys for other purposes lead to other records.
void begin_records(RecordCipher& seals, RecordCipher& opens, std::string_view purpose,
                   std::string_view key, End self, const Greeting& mine, const Greeting& theirs);

}  // namespace sortie::seal
