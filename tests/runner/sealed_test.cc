// Sealed records and streams, with which runners forward pieces to each other.
#include <doctest/doctest.h>

#include <boost/asio/io_context.hpp>
#include <optional>
#include <string>

#include "common/asio/spawn.h"
#include "runner/files/sealed_stream.h"
#include "tests/support/run_within.h"

using namespace sortie;
using namespace sortie::runner;
namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

unsigned char* bytes_of(std::string& text) {
  return reinterpret_cast<unsigned char*>(text.data());
}

std::string pattern(std::size_t size) {
  std::string text(size, '\0');
  for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 7 + i / 256);
  return text;
}

std::string sealed(RecordCipher& cipher, const std::string& text) {
  std::string record = text + std::string(RecordCipher::kTagBytes, '\0');
  cipher.seal(bytes_of(record), text.size());
  return record;
}

std::optional<std::string> opened(RecordCipher& cipher, std::string record) {
  const std::size_t size = record.size() - RecordCipher::kTagBytes;
  if (!cipher.open(bytes_of(record), size)) return std::nullopt;
  return record.substr(0, size);
}

/// Two ends of a TCP connection that have run open(), and the results of an exchange.
struct Pair {
  Pair(CipherKind of_server, CipherKind of_fetcher, std::string fetchers_key = std::string(32, 'k'))
      : server(accepted(), of_server), fetcher(std::move(*connected), of_fetcher) {
    server.set_deadline(std::chrono::milliseconds(20000));
    fetcher.set_deadline(std::chrono::milliseconds(20000));
    spawn(io, exchange(std::move(fetchers_key)));
    spawn(io, answer());
    test::run_within(io, std::chrono::seconds(30));
  }

  tcp::socket accepted() {
    tcp::acceptor acceptor(io, {asio::ip::address_v4::loopback(), 0});
    connected.emplace(io);
    connected->connect(acceptor.local_endpoint());
    return acceptor.accept();
  }
  asio::awaitable<void> exchange(std::string key) {
    co_await fetcher.open(key, SealedStream::Side::fetches);
    wire::FilePiece piece;
    piece.piece = 7;
    piece.bytes = pattern(wire::kPieceBytes);
    const wire::Message message(std::move(piece));
    co_await fetcher.write(message);
    auto reply = co_await fetcher.read();
    came_back.emplace(std::move(reply));
    io.stop();
  }
  asio::awaitable<void> answer() {
    const std::string key(32, 'k');
    co_await server.open(key, SealedStream::Side::serves);
    auto message = co_await server.read();
    if (message) co_await server.write(*message);
    arrived.emplace(std::move(message));
    // A peer with another key gets no answer.
    if (!*arrived) server.set_deadline(std::chrono::milliseconds(1));
  }

  asio::io_context io{1};
  std::optional<tcp::socket> connected;
  SealedStream server, fetcher;
  std::optional<Result<wire::Message>> arrived, came_back;
};

}  // namespace

TEST_CASE("records: in place, in order, and by who has the key alone") {
  for (const CipherKind kind : {CipherKind::chacha20_poly1305, RecordCipher::best()}) {
    RecordCipher::Key key{};
    key[3] = 9;
    RecordCipher seals, opens, other;
    seals.begin(kind, key);
    opens.begin(kind, key);
    for (const std::size_t size : {0u, 1u, 15u, 16u, 17u, 129u, 4097u, 1u << 20}) {
      const std::string text = pattern(size), record = sealed(seals, text);
      if (size > 16) CHECK(record.find(text.substr(0, 16)) == std::string::npos);
      CHECK(opened(opens, record) == text);
    }
    const std::string first = sealed(seals, "first"), second = sealed(seals, "second");
    other = opens;
    CHECK_FALSE(opened(other, second));  // the first record is missing
    CHECK(opened(opens, first) == "first");
    other = opens;
    CHECK_FALSE(opened(other, first));  // a replay
    std::string bent = second;
    bent[2] = static_cast<char>(bent[2] ^ 1);
    other = opens;
    CHECK_FALSE(opened(other, bent));
    key[0] = 1;
    other.begin(kind, key);
    CHECK_FALSE(opened(other, first));
    CHECK(opened(opens, second) == "second");
  }
}

TEST_CASE("a stream: any two ciphers find each other, two keys do not") {
  const std::string piece = pattern(wire::kPieceBytes);
  const CipherKind slow = CipherKind::chacha20_poly1305, best = RecordCipher::best();
  for (const auto& [server, fetcher] : {std::pair(best, best), {best, slow}, {slow, best}}) {
    Pair pair(server, fetcher);
    REQUIRE(pair.came_back);
    REQUIRE(*pair.came_back);
    CHECK(std::get<wire::FilePiece>(**pair.came_back).bytes == piece);
  }
  Pair strangers(best, best, std::string(32, 'x'));
  REQUIRE(strangers.arrived);
  REQUIRE_FALSE(*strangers.arrived);
  CHECK(strangers.arrived->error().message.find("link's key") != std::string::npos);
  REQUIRE(strangers.came_back);
  CHECK_FALSE(*strangers.came_back);
}
