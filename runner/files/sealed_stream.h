// SealedStream: messages between two runners over TCP. Without the link's key they can not be read,
// forged, reordered or replayed elsewhere. The launcher generates a key for each link and sends it
// over each host's own SSH connection. Record keys are derived from it, from random bytes of both
// sides and from the ciphers that both offered, so an altered greeting leads to different keys.
// Each direction has one buffer for one record, which is encrypted or decrypted in place.
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

  /// `best`: the best cipher to offer.
  explicit SealedStream(Socket socket, CipherKind best = RecordCipher::best());
  ~SealedStream();
  SealedStream(const SealedStream&) = delete;
  SealedStream& operator=(const SealedStream&) = delete;

  boost::asio::awaitable<Result<>> connect(boost::asio::ip::tcp::endpoint endpoint);
  /// Write and read the number of the link, unencrypted, before open().
  boost::asio::awaitable<Result<>> write_link(std::uint32_t link);
  boost::asio::awaitable<Result<std::uint32_t>> read_link();
  /// Exchanges greetings with the other side; from then on everything is encrypted.
  boost::asio::awaitable<Result<>> open(const std::string& key, Side side);

  /// Sends a message. `message` is copied before the first suspension.
  boost::asio::awaitable<Result<>> write(const wire::Message& message);
  /// Receives a message. Error: the stream was closed, the deadline passed, or the record was not
  /// made with the key.
  boost::asio::awaitable<Result<wire::Message>> read();

  /// Closes the socket after `limit` unless another deadline is set before.
  void set_deadline(std::chrono::milliseconds limit);

 private:
  std::shared_ptr<Socket> socket_;
  boost::asio::steady_timer deadline_;
  const CipherKind best_;
  RecordCipher seals_, opens_;
  std::string outgoing_, incoming_;
};

}  // namespace sortie::runner
