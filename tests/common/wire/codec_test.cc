#include <doctest/doctest.h>

#include "common/wire/codec.h"

using namespace sortie;
using namespace sortie::wire;

namespace {
template <class M>
M round_trip(const M& message) {
  FrameDecoder decoder;
  decoder.feed(encode(message));
  auto frame = decoder.next();
  REQUIRE(frame);
  REQUIRE(frame->has_value());
  CHECK(decoder.at_border());
  auto decoded = decode(**frame);
  REQUIRE(decoded);
  REQUIRE(std::holds_alternative<M>(*decoded));
  return std::get<M>(*decoded);
}
}  // namespace

TEST_CASE("the example of the README is what is sent") {
  const std::string bytes = encode(Stop{10000, "rank 3 failed"});
  CHECK(bytes == std::string("\x12\0\0\0\x04\0\0\0\x08\x90\x4e\x12\x0drank 3 failed", 26));
}

TEST_CASE("a job keeps every byte of argv and env") {
  JobSpec job;
  job.run_id = "r1";
  job.argv = {"prog", "", "a b'\"$(x)\n", std::string("\0\xff", 2)};
  job.env = {{"A", "1=2\n"}, {"B", ""}};
  job.ranks = {{5, 1, 7, {{"RANK", "5"}}}, {6, 2, 0, {}}};
  job.node_hosts = {"a", "b"};
  const JobSpec got = round_trip(job);
  CHECK(got.argv == job.argv);
  CHECK(got.env == job.env);
  REQUIRE(got.ranks.size() == 2);
  CHECK(got.ranks[0].env == job.ranks[0].env);
  CHECK(got.ranks[0].slot == 7);
  CHECK(got.ranks[1].rank == 6);
  CHECK(got.node_hosts == job.node_hosts);
}

TEST_CASE("negative numbers survive") {
  CHECK(round_trip(PmixAbort{3, -7, "bye"}).status == -7);
  CHECK(round_trip(RunnerError{"spawn", "x", -1}).rank == -1);
}

TEST_CASE("files: entries and ranges survive, values out of range do not") {
  FilesManifest manifest;
  manifest.entries = {{"d", FileKind::folder, 0755, 0, "", ""},
                      {"d/f", FileKind::file, 0644, 5, std::string(32, 'h'), ""},
                      {"d/l", FileKind::symlink, 0777, 0, "", "f"}};
  manifest.last = 1;
  const FilesManifest back = round_trip(manifest);
  REQUIRE(back.entries.size() == 3);
  CHECK(back.entries[1].path == "d/f");
  CHECK(back.entries[1].kind == FileKind::file);
  CHECK(back.entries[1].hashes == std::string(32, 'h'));
  CHECK(back.entries[2].link_target == "f");
  const FilesWanted wanted = round_trip(FilesWanted{{{1, 2, 3}, {4, 5, 6}}, 1, 65535, "why"});
  CHECK(wanted.ranges[1].count == 6);
  CHECK(wanted.relay_port == 65535);
  CHECK(round_trip(FilesOpen{FilesPurpose::stage, "", {}, "0a", 7, 1, 2, "::1"}).cache_bytes == 7);
  const auto type_of = [](const Message& message) {
    return static_cast<std::uint8_t>(message.index() + 1);
  };
  CHECK_FALSE(decode({type_of(FilesOpen{}), std::string("\x08\x04", 2)}));  // no such purpose
  CHECK_FALSE(decode({type_of(FilesOpen{}), std::string("\x08\x00", 2)}));
  CHECK_FALSE(decode({type_of(FilesWanted{}), std::string("\x18\x80\x80\x04", 4)}));  // port 65536
}

TEST_CASE("every prefix of a frame asks for more bytes") {
  const std::string bytes = encode(Output{2, Stream::err, "hello"});
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    CAPTURE(length);
    FrameDecoder decoder;
    decoder.feed(std::string_view(bytes).substr(0, length));
    auto frame = decoder.next();
    REQUIRE(frame);
    CHECK(!frame->has_value());
    decoder.feed(std::string_view(bytes).substr(length));
    REQUIRE(decoder.next().value().has_value());
  }
}

TEST_CASE("a length beyond the limit is refused before its bytes arrive") {
  FrameDecoder decoder(1000);
  decoder.feed(std::string("\xe9\x03\0\0\x01\0\0\0", 8));
  CHECK(decoder.next().error().message ==
        "frame of 1001 bytes announced, more than the limit of 1000");
  CHECK(decoder.next().error().code == ErrorCode::protocol);
}

TEST_CASE("text instead of a frame is refused") {
  FrameDecoder decoder;
  decoder.feed("Last login: Fri Nov 20 2026");
  CHECK(decoder.next().error().code == ErrorCode::protocol);
}

TEST_CASE("payloads outside the grammar are error values") {
  CHECK(decode({0, ""}).error().message == "unknown message type 0");
  CHECK(decode({200, ""}).error().message == "unknown message type 200");
  CHECK(decode({1, "\x08"}).error().code == ErrorCode::protocol);  // truncated varint
  CHECK(decode({1, "\x0a\x01x"}).error().code ==
        ErrorCode::protocol);  // string where a number belongs
  CHECK(decode({10, std::string("\x10\x07", 2)}).error().code ==
        ErrorCode::protocol);  // no such stream
  CHECK(decode({1, "\x12\x7fxx"}).error().code ==
        ErrorCode::protocol);  // string longer than the payload
  // A number where the name or the value of a variable belongs (JobSpec::env).
  CHECK(decode({2, std::string("\x42\x02\x08\x01", 4)}).error().message ==
        "malformed JobSpec: field has the wrong wire type");
  CHECK(decode({2, std::string("\x42\x02\x10\x01", 4)}).error().message ==
        "malformed JobSpec: field has the wrong wire type");
}

TEST_CASE("fields of a newer peer are skipped") {
  std::string payload("\x08\x2a\xf8\x01\x05", 5);  // sequence = 42, field 31 = 5
  auto message = decode({5, payload});
  REQUIRE(message);
  CHECK(std::get<Heartbeat>(*message).sequence == 42);
}
