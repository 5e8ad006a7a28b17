// SealedStream: messages between two runners over TCP that nobody without the link's key can read,
// forge, reorder or replay into another place. The link's key comes from the launcher, over each
// host's own SSH connection, for this one link. Keys of records are made of it, of random bytes of
// both sides and of the ciphers that both have offered: an altered greeting leads to other keys.
// Both ways have one buffer of one record each, which is encrypted and decrypted in place.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <string>

#include "common/base/result.h"
#include "common/seal/greeting.h"
#include "common/seal/record_cipher.h"
#include "common/wire/message.h"

namespace sortie::runner {

using seal::CipherKind;
using seal::RecordCipher;

class SealedStream {
 public:
  using Socket = boost::asio::ip::tcp::socket;
  enum class Side { serves, fetches };
  static constexpr std::size_t kKeyBytes = seal::kSharedKeyBytes;

  /// `best`: the cipher to offer.
  explicit SealedStream(Socket socket, CipherKind best = RecordCipher::best());
  ~SealedStream();
  SealedStream(const SealedStream&) = delete;
  SealedStream& operator=(const SealedStream&) = delete;

  boost::asio::awaitable<Result<>> connect(boost::asio::ip::tcp::endpoint endpoint);
  /// Unsealed, before open(): the number of the link.
  boost::asio::awaitable<Result<>> write_link(std::uint32_t link);
  boost::asio::awaitable<Result<std::uint32_t>> read_link();
  /// Both sides greet; from then on everything is sealed.
  boost::asio::awaitable<Result<>> open(const std::string& key, Side side);

  /// `message` is not used any more when the first part of it is on its way.
  boost::asio::awaitable<Result<>> write(const wire::Message& message);
  /// Error: closed, a deadline, or not from the holder of the key.
  boost::asio::awaitable<Result<wire::Message>> read();

  /// The socket is closed when that passes before the next call.
  void set_deadline(std::chrono::milliseconds limit);

 private:
  std::shared_ptr<Socket> socket_;
  boost::asio::steady_timer deadline_;
  const CipherKind best_;
  RecordCipher seals_, opens_;
  std::string outgoing_, incoming_;
};

}  // namespace sortie::runner
