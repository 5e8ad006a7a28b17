// Frames between conversations, and FrameScan, which separates them from the bytes of
// conversations.
#include "common/wire/serving.h"

#include <doctest/doctest.h>

#include "common/wire/codec.h"

namespace sortie::wire {
namespace {

/// Result of scanning all of `stream` in pieces of `piece` bytes: the bytes passed on, and the
/// types of the serving frames removed.
struct Scanned {
  std::string passed;
  std::vector<Serving> controls;
  bool good = true;
};
Scanned scan_in_pieces(FrameScan& scan, std::string_view stream, std::size_t piece) {
  Scanned out;
  while (!stream.empty() && out.good) {
    std::string_view bytes = stream.substr(0, piece);
    stream.remove_prefix(bytes.size());
    while (!bytes.empty()) {
      const auto control = scan.take(bytes, out.passed);
      out.good = control.has_value();
      if (!out.good) break;
      if (*control) out.controls.push_back((*control)->type);
    }
  }
  return out;
}

TEST_CASE("serving frames are taken out of a stream however it is cut") {
  const std::string hello = encode(Hello{kProtocolVersion, "build"});
  const std::string output = encode(Output{0, Stream::out, std::string(300, 'x')});
  const std::string stream = serving_frame(Serving::begun) + hello + output +
                             serving_frame(ConversationEnd{7, 1}) + serving_frame(Serving::pong);
  for (const std::size_t piece : {1u, 3u, 8u, 9u, 100u, 4000u}) {
    CAPTURE(piece);
    FrameScan scan;
    const Scanned all = scan_in_pieces(scan, stream, piece);
    CHECK(all.good);
    CHECK(all.passed == hello + output);
    CHECK(all.controls == std::vector{Serving::begun, Serving::ended, Serving::pong});
    CHECK(scan.at_border());
  }
}

TEST_CASE("nothing is passed on after the last message; a border is where no message is half") {
  const std::string goodbye = encode(Goodbye{});
  const std::string beat = encode(Heartbeat{});
  for (const std::size_t piece : {1u, 5u, 100u}) {
    FrameScan scan(goodbye_type());
    const Scanned all = scan_in_pieces(scan, beat + goodbye + beat, piece);
    CHECK(all.passed == beat + goodbye);
    CHECK(scan.at_last());
  }
  FrameScan scan(goodbye_type());
  scan_in_pieces(scan, std::string_view(beat).substr(0, beat.size() - 1), 100);
  CHECK_FALSE(scan.at_border());
  CHECK_FALSE(scan.at_last());
}

TEST_CASE("what are no frames is an error") {
  for (const std::string& bytes : {std::string(8, '\xff'), encode_frame(224, std::string(100, 0)),
                                   std::string("\0\0\0\0\1\0\0\1", 8)}) {
    FrameScan scan;
    CHECK_FALSE(scan_in_pieces(scan, bytes, 100).good);
  }
  CHECK_FALSE(read_terms(std::string(8, '\0')));
  CHECK_FALSE(read_terms("1234"));
  const std::string terms = serving_frame(ServeTerms{70'000, 300});
  const auto read = read_terms(std::string_view(terms).substr(kFrameHeaderBytes));
  REQUIRE(read);
  CHECK(read->idle_ms == 70'000);
  CHECK(read->silence_ms == 300);
}

}  // namespace
}  // namespace sortie::wire
