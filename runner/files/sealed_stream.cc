#include "runner/files/sealed_stream.h"

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include "common/base/check.h"
#include "common/wire/codec.h"
#include "runner/wakeup.h"

namespace sortie::runner {
namespace asio = boost::asio;

namespace {

constexpr std::size_t kSealBytes = crypto_secretstream_xchacha20poly1305_ABYTES;
constexpr std::size_t kHeaderBytes = crypto_secretstream_xchacha20poly1305_HEADERBYTES;
constexpr std::size_t kMaxRecord = wire::kPieceBytes + (64u << 10);
static_assert(SealedStream::kKeyBytes == crypto_secretstream_xchacha20poly1305_KEYBYTES);
static_assert(SealedStream::kKeyBytes == crypto_kdf_KEYBYTES);

using Bytes4 = std::array<unsigned char, 4>;
using Key = std::array<unsigned char, SealedStream::kKeyBytes>;
using Header = std::array<unsigned char, kHeaderBytes>;

Bytes4 to_bytes(std::uint32_t number) {
  Bytes4 bytes{};
  for (std::size_t i = 0; i < 4; ++i) bytes[i] = static_cast<unsigned char>(number >> (8 * i));
  return bytes;
}

std::uint32_t to_number(const Bytes4& bytes) {
  std::uint32_t number = 0;
  for (std::size_t i = 0; i < 4; ++i) number |= std::uint32_t{bytes[i]} << (8 * i);
  return number;
}

/// A key for each direction, so that no record can be turned back on its sender.
Key direction_key(const std::string& key, std::uint64_t direction) {
  Key out{};
  crypto_kdf_derive_from_key(out.data(), out.size(), direction, "sortierl",
                             reinterpret_cast<const unsigned char*>(key.data()));
  return out;
}

Error lost(const boost::system::error_code& error) {
  return {ErrorCode::lost,
          error == asio::error::operation_aborted ? "no answer in time" : error.message()};
}

}  // namespace

SealedStream::SealedStream(Socket socket)
    : socket_(std::make_shared<Socket>(std::move(socket))), deadline_(socket_->get_executor()) {
  SORTIE_CHECK(sodium_init() >= 0);
}

SealedStream::~SealedStream() {
  boost::system::error_code ignored;
  socket_->close(ignored);
}

void SealedStream::set_deadline(std::chrono::milliseconds limit) {
  deadline_.expires_after(limit);
  deadline_.async_wait([weak = std::weak_ptr<Socket>(socket_)](boost::system::error_code error) {
    const auto socket = error ? nullptr : weak.lock();
    boost::system::error_code ignored;
    if (socket) socket->close(ignored);
  });
}

asio::awaitable<Result<>> SealedStream::connect(asio::ip::tcp::endpoint endpoint) {
  const auto [error] = co_await socket_->async_connect(endpoint, kAsTuple);
  if (error) co_return std::unexpected(lost(error));
  co_return Result<>();
}

asio::awaitable<Result<>> SealedStream::write_link(std::uint32_t link) {
  const Bytes4 bytes = to_bytes(link);
  const auto [error, count] = co_await asio::async_write(*socket_, asio::buffer(bytes), kAsTuple);
  if (error) co_return std::unexpected(lost(error));
  co_return Result<>();
}

asio::awaitable<Result<std::uint32_t>> SealedStream::read_link() {
  Bytes4 bytes{};
  const auto [error, count] = co_await asio::async_read(*socket_, asio::buffer(bytes), kAsTuple);
  if (error) co_return std::unexpected(lost(error));
  co_return to_number(bytes);
}

asio::awaitable<Result<>> SealedStream::open(const std::string& key, Side side) {
  Header mine{}, theirs{};
  const Key out = direction_key(key, side == Side::serves ? 1 : 2);
  const Key in = direction_key(key, side == Side::serves ? 2 : 1);
  crypto_secretstream_xchacha20poly1305_init_push(&push_, mine.data(), out.data());
  const auto [failed, sent] = co_await asio::async_write(*socket_, asio::buffer(mine), kAsTuple);
  if (failed) co_return std::unexpected(lost(failed));
  const auto [error, count] = co_await asio::async_read(*socket_, asio::buffer(theirs), kAsTuple);
  if (error) co_return std::unexpected(lost(error));
  if (crypto_secretstream_xchacha20poly1305_init_pull(&pull_, theirs.data(), in.data()) != 0)
    co_return fail(ErrorCode::protocol, "not a stream of this transfer");
  co_return Result<>();
}

asio::awaitable<Result<>> SealedStream::write(wire::Message message) {
  const std::string frame = wire::encode(message);
  std::string record(4 + frame.size() + kSealBytes, '\0');
  const Bytes4 length = to_bytes(static_cast<std::uint32_t>(frame.size() + kSealBytes));
  std::copy(length.begin(), length.end(), record.begin());
  crypto_secretstream_xchacha20poly1305_push(
      &push_, reinterpret_cast<unsigned char*>(record.data() + 4), nullptr,
      reinterpret_cast<const unsigned char*>(frame.data()), frame.size(), nullptr, 0, 0);
  const auto [error, count] = co_await asio::async_write(*socket_, asio::buffer(record), kAsTuple);
  if (error) co_return std::unexpected(lost(error));
  co_return Result<>();
}

asio::awaitable<Result<wire::Message>> SealedStream::read() {
  Bytes4 length{};
  const auto [cut, got] = co_await asio::async_read(*socket_, asio::buffer(length), kAsTuple);
  if (cut) co_return std::unexpected(lost(cut));
  const std::size_t size = to_number(length);
  if (size < kSealBytes + wire::kFrameHeaderBytes || size > kMaxRecord)
    co_return fail(ErrorCode::protocol, "a record of an impossible size");
  std::string record(size, '\0');
  const auto [error, count] = co_await asio::async_read(*socket_, asio::buffer(record), kAsTuple);
  if (error) co_return std::unexpected(lost(error));
  std::string frame(size - kSealBytes, '\0');
  if (crypto_secretstream_xchacha20poly1305_pull(
          &pull_, reinterpret_cast<unsigned char*>(frame.data()), nullptr, nullptr,
          reinterpret_cast<const unsigned char*>(record.data()), size, nullptr, 0) != 0)
    co_return fail(ErrorCode::protocol, "a record that was not made with the link's key");
  wire::FrameDecoder decoder(kMaxRecord);
  decoder.feed(frame);
  const auto whole = decoder.next();
  if (!whole || !*whole || !decoder.at_border())
    co_return fail(ErrorCode::protocol, "a record that is no frame");
  co_return wire::decode(**whole);
}

}  // namespace sortie::runner
