#include "runner/files/sealed_stream.h"

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <string_view>

#include "common/wire/codec.h"
#include "runner/streams/wakeup.h"

namespace sortie::runner {
namespace asio = boost::asio;

namespace {

constexpr std::size_t kMaxRecord = wire::kPieceBytes + (64u << 10);
using Bytes4 = std::array<unsigned char, 4>;
constexpr std::string_view kPurpose = "sortie link records 2";

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

unsigned char* bytes_of(std::string& text, std::size_t at) {
  return reinterpret_cast<unsigned char*>(text.data()) + at;
}

/// Completion condition that reads or writes all the rest in one call; asio's own ones stop at 64
/// KiB.
auto whole(std::size_t size) {
  return [size](const boost::system::error_code& error, std::size_t done) {
    return error ? 0 : size - done;
  };
}

Error lost(const boost::system::error_code& error) {
  return {ErrorCode::lost,
          error == asio::error::operation_aborted ? "no answer in time" : error.message()};
}

}  // namespace

SealedStream::SealedStream(Socket socket, CipherKind best)
    : socket_(std::make_shared<Socket>(std::move(socket))),
      deadline_(socket_->get_executor()),
      best_(best) {}

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
  const auto [error] = co_await socket_->async_connect(endpoint, kToken);
  if (error) co_return std::unexpected(lost(error));
  co_return Result<>();
}

asio::awaitable<Result<>> SealedStream::write_link(std::uint32_t link) {
  const Bytes4 bytes = to_bytes(link);
  const auto [error, count] = co_await asio::async_write(*socket_, asio::buffer(bytes), kToken);
  if (error) co_return std::unexpected(lost(error));
  co_return Result<>();
}

asio::awaitable<Result<std::uint32_t>> SealedStream::read_link() {
  Bytes4 bytes{};
  const auto [error, count] = co_await asio::async_read(*socket_, asio::buffer(bytes), kToken);
  if (error) co_return std::unexpected(lost(error));
  co_return to_number(bytes);
}

asio::awaitable<Result<>> SealedStream::open(const std::string& key, Side side) {
  const seal::Greeting mine = seal::make_greeting(best_);
  seal::Greeting theirs{};
  const auto [failed, sent] = co_await asio::async_write(*socket_, asio::buffer(mine), kToken);
  if (failed) co_return std::unexpected(lost(failed));
  const auto [error, count] = co_await asio::async_read(*socket_, asio::buffer(theirs), kToken);
  if (error) co_return std::unexpected(lost(error));
  const seal::End self = side == Side::serves ? seal::End::first : seal::End::second;
  seal::begin_records(seals_, opens_, kPurpose, key, self, mine, theirs);
  co_return Result<>();
}

asio::awaitable<Result<>> SealedStream::write(const wire::Message& message) {
  outgoing_.resize(sizeof(Bytes4));
  wire::append_frame(outgoing_, message);
  const std::size_t size = outgoing_.size() - sizeof(Bytes4);
  outgoing_.append(RecordCipher::kTagBytes, '\0');
  const Bytes4 length = to_bytes(static_cast<std::uint32_t>(size + RecordCipher::kTagBytes));
  std::copy(length.begin(), length.end(), outgoing_.begin());
  seals_.seal(bytes_of(outgoing_, sizeof(Bytes4)), size);
  const auto all = whole(outgoing_.size());
  const auto [error, count] =
      co_await asio::async_write(*socket_, asio::buffer(outgoing_), all, kToken);
  if (error) co_return std::unexpected(lost(error));
  co_return Result<>();
}

asio::awaitable<Result<wire::Message>> SealedStream::read() {
  Bytes4 length{};
  const auto [cut, got] = co_await asio::async_read(*socket_, asio::buffer(length), kToken);
  if (cut) co_return std::unexpected(lost(cut));
  const std::size_t size = to_number(length);
  if (size < RecordCipher::kTagBytes + wire::kFrameHeaderBytes || size > kMaxRecord)
    co_return fail(ErrorCode::protocol, "a record of an impossible size");
  incoming_.resize(size);
  const auto all = whole(size);
  const auto [error, count] =
      co_await asio::async_read(*socket_, asio::buffer(incoming_), all, kToken);
  if (error) co_return std::unexpected(lost(error));
  const std::size_t sealed = size - RecordCipher::kTagBytes;
  if (!opens_.open(bytes_of(incoming_, 0), sealed))
    co_return fail(ErrorCode::protocol, "a record that was not made with the link's key");
  const auto frame = wire::view_frame(std::string_view(incoming_).substr(0, sealed));
  if (!frame) co_return std::unexpected(frame.error());
  co_return wire::decode(*frame);
}

}  // namespace sortie::runner
