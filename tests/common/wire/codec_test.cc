#include <doctest/doctest.h>

#include "common/wire/codec.h"
#include "common/wire/node_list.h"

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
  const std::string bytes = encode(Stop{10000, "rank 3 failed", 1});
  CHECK(bytes == std::string("\x14\0\0\0\x04\0\0\0\x08\x90\x4e\x12\x0drank 3 failed\x18\x01", 28));
}

TEST_CASE("a job keeps every byte of argv and env") {
  JobSpec job;
  job.run_id = "r1";
  job.argv = {"prog", "", "a b'\"$(x)\n", std::string("\0\xff", 2)};
  job.env = {{"A", "1=2\n"}, {"B", ""}};
  job.ranks = {{5, 1, 7, {{"RANK", "5"}}}, {6, 2, 0, {}}};
  job.nodes = {{"a", 7, 2, ".x", 3, 8}, {"b", 0, 0, "", 1, 1}};
  const JobSpec got = round_trip(job);
  CHECK(got.argv == job.argv);
  CHECK(got.env == job.env);
  REQUIRE(got.ranks.size() == 2);
  CHECK(got.ranks[0].env == job.ranks[0].env);
  CHECK(got.ranks[0].slot == 7);
  CHECK(got.ranks[1].rank == 6);
  REQUIRE(got.nodes.size() == 2);
  CHECK(*expand_nodes(got.nodes) == *expand_nodes(job.nodes));
}

TEST_CASE("an adoption keeps its log sizes") {
  const Adopt adopt =
      round_trip(Adopt{2, "r1", 1, 3, 7, {{0, Stream::out, 5}, {1, Stream::err, 6}}});
  CHECK(adopt.run_id == "r1");
  CHECK(adopt.epoch == 7);
  REQUIRE(adopt.log_sizes.size() == 2);
  CHECK(adopt.log_sizes[1].rank == 1);
  CHECK(adopt.log_sizes[1].stream == Stream::err);
  CHECK(adopt.log_sizes[1].bytes == 6);
  CHECK(round_trip(Adopted{7}).epoch == 7);
}

TEST_CASE("what is known only when hosts are ready comes with JobReady and goes out with Start") {
  JobSpec job;
  job.peers = {"10.0.0.2", "fd00::2"};
  job.master_port = 29500;
  job.cpu_binding = CpuBinding::numa;
  job.need_work_dir = 1;
  const JobSpec spec = round_trip(job);
  CHECK(spec.peers == job.peers);
  CHECK(spec.master_port == 29500);
  CHECK(spec.cpu_binding == CpuBinding::numa);
  CHECK(spec.need_work_dir == 1);
  JobReady ready;
  ready.addresses = {"eth0 10.0.0.1/24"};
  ready.routes = {{"10.0.0.2", "10.0.0.1"}, {"fd00::2", "fd00::1"}};
  ready.master_port = 20001;
  ready.binding = "core";
  ready.cpu_sets = {"0-3", "4-7"};
  ready.gpus = 8;
  ready.no_work_dir = 1;
  const JobReady got = round_trip(ready);
  CHECK(got.addresses == ready.addresses);
  CHECK(got.routes == ready.routes);
  CHECK(got.master_port == 20001);
  CHECK(got.binding == "core");
  CHECK(got.cpu_sets == ready.cpu_sets);
  CHECK(got.gpus == 8);
  CHECK(got.no_work_dir == 1);
  const Start start{{{"MASTER_ADDR", "10.0.0.1"}, {"EMPTY", ""}}};
  CHECK(round_trip(start).env == start.env);
  CHECK(round_trip(Start{}).env.empty());
  // Field 19 of JobSpec with an undefined policy.
  CHECK(decode({2, std::string("\x98\x01\x04", 3)}).error().message ==
        "malformed JobSpec: value out of range");
}

TEST_CASE("negative numbers survive") {
  CHECK(round_trip(PmixAbort{3, -7, "bye"}).status == -7);
  CHECK(round_trip(PmixExited{3, 1}).not_finalized == 1);
  CHECK(round_trip(CheckRequest{R"({"kind":"clock"})"}).json == R"({"kind":"clock"})");
  CHECK(round_trip(CheckReport{"{}"}).json == "{}");
  CHECK(round_trip(TunnelOrder{R"({"do":"open"})"}).json == R"({"do":"open"})");
  CHECK(round_trip(TunnelReport{"{}"}).json == "{}");
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

TEST_CASE("names and their answers keep every byte; an action that does not exist is refused") {
  const PmixNames asked{7,           3, PmixNames::Action::publish, 1, {"a", std::string("b\0", 2)},
                        {"", "\xff"}};
  const PmixNames got = round_trip(asked);
  CHECK(got.action == asked.action);
  CHECK(got.wait == 1);
  CHECK(got.keys == asked.keys);
  CHECK(got.values == asked.values);
  const PmixNamesDone done = round_trip(PmixNamesDone{7, -46, {0, 5}, {"a", "b"}, {"", "x"}});
  CHECK(done.status == -46);
  CHECK(done.ranks == std::vector<std::uint32_t>{0, 5});
  for (const char action : {'\0', '\x05'})
    CHECK(decode({24, std::string{'\x18', action}}).error().message ==
          "malformed PmixNames: value out of range");
}

TEST_CASE("containers: a spec survives inside its job, a scope that does not exist is refused") {
  CHECK(round_trip(JobSpec{}).container.engine.empty());
  JobSpec job;
  ContainerSpec& spec = job.container;
  spec.engine = "docker";
  spec.image = "sortie:1";
  spec.scope = ContainerScope::rank;
  spec.mounts = {{"/data", "/dataset", "ro"}, {"/a b", "/c", ""}};
  spec.shm_bytes = 1ull << 34;
  spec.ulimits = {{"memlock", "-1"}};
  spec.entrypoint = {""};
  spec.labels = {{"team", "\xff\n"}};
  spec.rank_memory_bytes = 1ull << 40;
  spec.image_id = "sha256:00";
  const ContainerSpec got = round_trip(job).container;
  CHECK(got.engine == "docker");
  CHECK(got.scope == ContainerScope::rank);
  REQUIRE(got.mounts.size() == 2);
  CHECK(got.mounts[0].options == "ro");
  CHECK(got.mounts[1].source == "/a b");
  CHECK(got.shm_bytes == spec.shm_bytes);
  CHECK(got.ulimits == spec.ulimits);
  CHECK(got.entrypoint == spec.entrypoint);
  CHECK(got.labels == spec.labels);
  CHECK(got.rank_memory_bytes == spec.rank_memory_bytes);
  CHECK(got.image_id == spec.image_id);
  const ImageOrder order =
      round_trip(ImageOrder{"ctr", "a:b", 2, "{}", {"/a b", "/c"}, 7, 8, "1:2"});
  CHECK(order.mount_sources.size() == 2);
  CHECK(order.heartbeat_timeout_ms == 8);
  CHECK(order.user == "1:2");
  CHECK(round_trip(ImageQuery{"docker", "a:b", "sha256:1", {"x", "y"}, 7, 8}).diff_ids.size() == 2);
  CHECK(round_trip(ImageLacking{1, 3}).layers == 3);
  CHECK(round_trip(ImageLoad{"docker", "a:b", "/f.tar"}).file == "/f.tar");
  CHECK(round_trip(ImageProgress{"layer 2 of 3"}).text == "layer 2 of 3");
  CHECK(round_trip(ImageReady{"sha256:00", "a@sha256:11", "docker 20", 7, 1}).bytes == 7);
  // Field 3 of the container (field 23 of JobSpec): an undefined scope.
  CHECK(decode({2, std::string("\xba\x01\x02\x18\x02", 5)}).error().message ==
        "malformed JobSpec: value out of range");
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

TEST_CASE("one whole frame is read where it lies, less or more is none") {
  std::string bytes = "before";
  Heartbeat beat;
  beat.sequence = 42;
  append_frame(bytes, beat);
  CHECK(bytes.substr(6) == encode(beat));
  const std::string_view frame = std::string_view(bytes).substr(6);
  const auto view = view_frame(frame);
  REQUIRE(view);
  CHECK(std::get<Heartbeat>(decode(*view).value()).sequence == 42);
  CHECK_FALSE(view_frame(frame.substr(0, frame.size() - 1)));
  CHECK_FALSE(view_frame(frame.substr(0, kFrameHeaderBytes - 1)));
  CHECK_FALSE(view_frame(std::string(frame) + "x"));
  CHECK_FALSE(view_frame("Last login: Fri Nov 20 2026"));
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
        ErrorCode::protocol);  // a string instead of a number
  CHECK(decode({10, std::string("\x10\x07", 2)}).error().code ==
        ErrorCode::protocol);  // no such stream
  CHECK(decode({1, "\x12\x7fxx"}).error().code ==
        ErrorCode::protocol);  // string longer than the payload
  // A number instead of a string as the name or the value of a variable (JobSpec::env).
  CHECK(decode({2, std::string("\x42\x02\x08\x01", 4)}).error().message ==
        "malformed JobSpec: field has the wrong wire type");
  CHECK(decode({2, std::string("\x42\x02\x10\x01", 4)}).error().message ==
        "malformed JobSpec: field has the wrong wire type");
}

TEST_CASE("a frame of empty items does not fill the memory") {
  std::string argv, ranks, names;
  for (std::size_t i = 0; i < kMaxItems; ++i) {
    argv += std::string("\x32\0", 2);   // JobSpec::argv
    ranks += std::string("\x4a\0", 2);  // JobSpec::ranks
    names += std::string("\x42\0", 2);  // JobSpec::env
  }
  CHECK(decode({2, argv}).has_value());
  CHECK(decode({2, ranks}).has_value());
  for (const std::string& payload :
       {argv + ranks, argv + std::string("\x32\0", 2), ranks + std::string("\x42\0", 2),
        names + std::string("\x42\0", 2), ranks + std::string("\x4a\x02\x22\0", 4)})
    CHECK(decode({2, payload}).error().message == "malformed JobSpec: too many items in its lists");
  CHECK(decode({2, argv}).has_value());  // the limit is per message
}

TEST_CASE("fields of a newer peer are skipped") {
  std::string payload("\x08\x2a\xf8\x01\x05", 5);  // sequence = 42, field 31 = 5
  auto message = decode({5, payload});
  REQUIRE(message);
  CHECK(std::get<Heartbeat>(*message).sequence == 42);
}

TEST_CASE("stdin keeps every byte, and its end") {
  const Input input = round_trip(Input{std::string("\0\xff\n", 3), 1});
  CHECK(input.bytes == std::string("\0\xff\n", 3));
  CHECK(input.eof == 1);
  const InputCredit credit = round_trip(InputCredit{std::uint64_t{1} << 40, 1});
  CHECK(credit.bytes == std::uint64_t{1} << 40);
  CHECK(credit.closed == 1);
  JobSpec job;
  job.autostart = 1;
  job.input_window = 4096;
  CHECK(round_trip(job).autostart == 1);
  CHECK(round_trip(job).input_window == 4096);
}
