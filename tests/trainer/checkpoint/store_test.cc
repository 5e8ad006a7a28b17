// Tests of CheckpointStore: saving, finding, reading into another layout, retention, and every kind
// of damage.
#include "trainer/checkpoint/store.h"

#include <doctest/doctest.h>

#include <set>
#include <string>

#include "common/base/command_name.h"
#include "tests/support/temp_dir.h"
#include "tests/support/without_call.h"
#include "tests/trainer/checkpoint/checkpoint_fixture.h"
#include "trainer/checkpoint/file_ops.h"
#include "trainer/checkpoint/lineage.h"
#include "trainer/checkpoint/open_checkpoint.h"

namespace sortie::trainer {
namespace fs = std::filesystem;
namespace {

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

CheckpointStore open_store(const fs::path& folder) {
  auto store = CheckpointStore::open(folder, {"test"});
  REQUIRE(store.has_value());
  return std::move(*store);
}

}  // namespace

TEST_CASE("a save has its layout, and its manifest comes back") {
  test::ScopedTempDir dir;
  CheckpointStore store = open_store(dir.path() / "save");
  const auto folder = test_job::save(store, 1200);
  REQUIRE(folder.has_value());
  CHECK(*folder == dir.path() / "save" / "step-00001200");
  CHECK(names_in(*folder) == std::set<std::string>{"COMMIT", "manifest.json",
                                                   "shard-00000-of-00002.safetensors",
                                                   "shard-00001-of-00002.safetensors"});
  CHECK(names_in(dir.path() / "save") == std::set<std::string>{".lock", "step-00001200"});
  const auto manifest = check_checkpoint(*folder, CheckDepth::hashes);
  REQUIRE(manifest.has_value());
  const Manifest wanted = test_job::manifest_of(1200);
  CHECK(manifest->run_id == wanted.run_id);
  CHECK(manifest->step == 1200);
  CHECK(manifest->consumed_samples == wanted.consumed_samples);
  CHECK(manifest->tokens == wanted.tokens);
  CHECK(manifest->seed == 42);
  CHECK(manifest->world_size == 2);
  CHECK(manifest->config == wanted.config);
  CHECK(manifest->config_digest == wanted.config_digest);
  CHECK(manifest->scalars == wanted.scalars);  // to the last bit
  CHECK(manifest->counters == wanted.counters);
  CHECK(manifest->depends_on == wanted.depends_on);
  CHECK(manifest->product_choices == wanted.product_choices);
  CHECK(manifest->shards.size() == 2);
  CHECK(manifest->tensors.size() == test_job::specs().size());
  CHECK(to_json(*manifest) == test::read_text(*folder / "manifest.json"));
  CHECK(test_job::holds_step(*folder, 1200));
}

TEST_CASE("what any number of writers saved is read into any other cut") {
  test::ScopedTempDir dir;
  CheckpointStore store = open_store(dir.path());
  for (const std::size_t writers : {1u, 2u, 3u, 5u, 8u}) {
    const auto folder = test_job::save(store, static_cast<std::int64_t>(writers), writers);
    REQUIRE(folder.has_value());
    auto reader = CheckpointReader::open(*folder, CheckDepth::hashes);
    REQUIRE(reader.has_value());
    for (const std::size_t readers : {1u, 2u, 4u, 7u})
      for (std::size_t index = 0; index < readers; ++index)
        for (const test_job::Spec& spec : test_job::specs()) {
          const auto whole = test_job::values(spec, static_cast<std::int64_t>(writers));
          const Piece piece = test_job::flat_cut(spec.shape, index, readers);
          std::vector<float> part(static_cast<std::size_t>(piece.elements()));
          REQUIRE(reader
                      ->read(spec.name, StorageType::f32, spec.shape, piece,
                             std::as_writable_bytes(std::span(part)))
                      .has_value());
          CHECK(std::equal(part.begin(), part.end(), whole.begin() + piece.begin));
        }
    // A tensor-parallel cut: columns 6 to 17 of the matrix.
    const test_job::Spec& matrix = test_job::specs()[0];
    const auto whole = test_job::values(matrix, static_cast<std::int64_t>(writers));
    std::vector<float> columns(16 * 12);
    REQUIRE(reader
                ->read(matrix.name, StorageType::f32, matrix.shape, Piece::box({0, 6}, {16, 12}),
                       std::as_writable_bytes(std::span(columns)))
                .has_value());
    for (std::size_t row = 0; row < 16; ++row)
      for (std::size_t column = 0; column < 12; ++column)
        CHECK(columns[row * 12 + column] == whole[row * 24 + 6 + column]);
  }
}

TEST_CASE("reading what is not there, or not so, is an error") {
  test::ScopedTempDir dir;
  CheckpointStore store = open_store(dir.path());
  const auto folder = test_job::save(store, 1);
  auto reader = CheckpointReader::open(*folder, CheckDepth::sizes);
  REQUIRE(reader.has_value());
  std::vector<float> out(24);
  const auto bytes = std::as_writable_bytes(std::span(out));
  auto message = [](const Result<>& result) {
    REQUIRE_FALSE(result.has_value());
    CHECK(result.error().code == ErrorCode::checkpoint);
    return result.error().message;
  };
  CHECK(message(reader->read("absent", StorageType::f32, {24}, Piece::whole({24}), bytes))
            .find("has no tensor absent") != std::string::npos);
  CHECK(
      message(reader->read("layers.0.bias", StorageType::f32, {4, 6}, Piece::whole({4, 6}), bytes))
          .find("is F32 [24], the model wants F32 [4, 6]") != std::string::npos);
  CHECK(message(reader->read("layers.0.bias", StorageType::i32, {24}, Piece::whole({24}), bytes))
            .find("the model wants I32 [24]") != std::string::npos);
}

TEST_CASE("errors about a checkpoint print commands with its path as one word") {
  test::ScopedTempDir dir;
  CheckpointStore store = open_store(dir / "run one");
  const auto folder = test_job::save(store, 1);
  auto reader = CheckpointReader::open(*folder, CheckDepth::sizes);
  REQUIRE(reader.has_value());
  std::vector<float> out(24);
  const auto refused = reader->read("layers.0.bias", StorageType::f32, {4, 6}, Piece::whole({4, 6}),
                                    std::as_writable_bytes(std::span(out)));
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().message.contains(
      "; `" + command_line({"checkpoint", "model", folder->string()}) + "` prints the [model]"));
  fs::create_directory(dir / "none yet");
  const auto none = open_checkpoint(dir / "none yet", CheckDepth::sizes, "");
  REQUIRE_FALSE(none.has_value());
  CHECK(none.error().message.ends_with(
      "; `" + command_line({"checkpoint", "ls", dir.str("none yet")}) + "` shows what it has"));
}

TEST_CASE("the newest good checkpoint is found, broken ones are reported and passed over") {
  test::ScopedTempDir dir;
  CHECK_FALSE(find_latest(dir.path() / "absent")->entry.has_value());
  CheckpointStore store = open_store(dir.path());
  CHECK_FALSE(find_latest(dir.path())->entry.has_value());
  for (const std::int64_t step : {9, 10, 100000000, 2}) REQUIRE(test_job::save(store, step));
  CHECK(find_latest(dir.path())->entry->step == 100000000);
  fs::remove(dir.path() / "step-100000000" / "COMMIT");
  fs::resize_file(dir.path() / "step-00000010" / "shard-00001-of-00002.safetensors", 50);
  fs::create_directory(dir.path() / "step-11");        // not the name of a checkpoint
  fs::create_directory(dir.path() / "step-0000001x");  // nor this
  const auto latest = find_latest(dir.path());
  REQUIRE(latest.has_value());
  REQUIRE(latest->entry.has_value());
  CHECK(latest->entry->step == 9);
  REQUIRE(latest->skipped.size() == 2);
  CHECK(latest->skipped[0].find("has no COMMIT") != std::string::npos);
  CHECK(latest->skipped[1].find("has 50 bytes, the manifest says") != std::string::npos);
}

TEST_CASE("a changed byte of any file is found by its hash") {
  test::ScopedTempDir dir;
  CheckpointStore store = open_store(dir.path());
  const auto folder = test_job::save(store, 5);
  REQUIRE(folder.has_value());
  for (const std::string& name : names_in(*folder)) {
    const std::string good = test::read_text(*folder / name);
    for (std::size_t at = 0; at < good.size(); at += name == "COMMIT" ? 1 : 7) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 0x10);
      test::write_text(*folder / name, bad);
      CAPTURE(name);
      CAPTURE(at);
      const auto checked = check_checkpoint(*folder, CheckDepth::hashes);
      REQUIRE_FALSE(checked.has_value());
      CHECK(checked.error().code == ErrorCode::checkpoint);
    }
    test::write_text(*folder / name, good);
  }
  CHECK(check_checkpoint(*folder, CheckDepth::hashes).has_value());
}

TEST_CASE("a missing file is named") {
  test::ScopedTempDir dir;
  CheckpointStore store = open_store(dir.path());
  for (const char* name : {"COMMIT", "manifest.json", "shard-00001-of-00002.safetensors"}) {
    const auto folder = test_job::save(store, 5);
    fs::remove(*folder / name);
    const auto checked = check_checkpoint(*folder, CheckDepth::sizes);
    REQUIRE_FALSE(checked.has_value());
    CHECK(checked.error().message.find(name) != std::string::npos);
  }
}

TEST_CASE("a checkpoint renamed to another step is broken") {
  test::ScopedTempDir dir;
  CheckpointStore store = open_store(dir.path());
  REQUIRE(test_job::save(store, 5));
  fs::rename(dir.path() / "step-00000005", dir.path() / "step-00000006");
  const auto latest = find_latest(dir.path());
  CHECK_FALSE(latest->entry.has_value());
  CHECK(latest->skipped.at(0).find("its manifest is of step 5") != std::string::npos);
}

TEST_CASE("saving a step again replaces it") {
  test::ScopedTempDir dir;
  CheckpointStore store = open_store(dir.path());
  REQUIRE(test_job::save(store, 5, 3));
  const auto folder = test_job::save(store, 5, 2);
  REQUIRE(folder.has_value());
  CHECK(names_in(*folder).size() == 4);
  CHECK(test_job::holds_step(*folder, 5));
  CHECK(names_in(dir.path()) == std::set<std::string>{".lock", "step-00000005"});
}

TEST_CASE("a folder that has a checkpoint is told from one that has none") {
  test::ScopedTempDir dir;
  const auto problem = [](const fs::path& folder) {
    const auto checked = check_has_no_checkpoint(folder);
    return checked ? "" : checked.error().message;
  };
  CHECK(problem(dir / "absent") == "");
  {
    CheckpointStore store = open_store(dir.path());
    CHECK(problem(dir.path()) == "");
    CheckpointStore best = open_store(dir / "best");
    REQUIRE(test_job::save(best, 3));
    CHECK(problem(dir.path()).find((dir / "best/step-00000003").string()) != std::string::npos);
    REQUIRE(test_job::save(store, 5));
  }
  CHECK(problem(dir.path()).starts_with(dir.path().string() + ": there is a checkpoint in it, "));
  fs::remove(dir / "step-00000005/COMMIT");  // a broken checkpoint must not be replaced either
  CHECK(problem(dir.path()).find((dir / "step-00000005").string()) != std::string::npos);
  CHECK(problem(dir / "best/step-00000003") != "");
}

TEST_CASE("retention keeps the newest good ones and leaves broken ones alone") {
  test::ScopedTempDir dir;
  CheckpointStore store = open_store(dir.path());
  for (std::int64_t step = 1; step <= 6; ++step) REQUIRE(test_job::save(store, step));
  fs::remove(dir.path() / "step-00000006" / "COMMIT");
  fs::remove(dir.path() / "step-00000002" / "manifest.json");
  REQUIRE(store.retain(6, 0).has_value());
  CHECK(names_in(dir.path()).size() == 7);
  REQUIRE(store.retain(6, 2).has_value());
  CHECK(names_in(dir.path()) == std::set<std::string>{".lock", "step-00000002", "step-00000004",
                                                      "step-00000005", "step-00000006"});
  REQUIRE(store.retain(6, 1).has_value());
  CHECK(find_latest(dir.path())->entry->step == 5);
  CHECK_FALSE(fs::exists(dir.path() / "step-00000004"));
}

TEST_CASE("retention counts from the checkpoint that was just committed, never from later steps") {
  test::ScopedTempDir dir;
  CheckpointStore store = open_store(dir.path());
  for (const std::int64_t step : {10, 20, 30, 100, 200}) REQUIRE(test_job::save(store, step));
  REQUIRE(test_job::save(store, 31));
  REQUIRE(store.retain(31, 1).has_value());
  CHECK(names_in(dir.path()) ==
        std::set<std::string>{".lock", "step-00000031", "step-00000100", "step-00000200"});
  REQUIRE(store.keep_only(31).has_value());
  CHECK(names_in(dir.path()) == std::set<std::string>{".lock", "step-00000031"});
}

TEST_CASE("lineage and origin come back; manifests of older versions have none") {
  Manifest manifest = test_job::manifest_of(7);
  manifest.lineage = "0123456789abcdef";
  manifest.origin = Manifest::Origin{"import", 3, "/models/step-00000003"};
  const auto read = parse_manifest(to_json(manifest), "test");
  REQUIRE(read.has_value());
  CHECK(read->lineage == manifest.lineage);
  CHECK(read->origin == manifest.origin);
  manifest.origin.reset();
  std::string older = to_json(manifest);
  for (const char* line : {" \"lineage\": \"0123456789abcdef\",\n", " \"origin\": null,\n"}) {
    REQUIRE(older.find(line) != std::string::npos);
    older.erase(older.find(line), std::string(line).size());
  }
  const auto old = parse_manifest(older, "test");
  REQUIRE(old.has_value());
  CHECK(old->lineage.empty());
  CHECK_FALSE(old->origin);
  CHECK(lineage_of(*old) == "test");  // the run that saved it
}

TEST_CASE("a folder that can not be written to, or is too full, is noticed before a save") {
  test::ScopedTempDir dir;
  CheckpointStore store = open_store(dir.path());
  REQUIRE(store.check_room(1 << 20).has_value());
  CHECK(names_in(dir.path()) == std::set<std::string>{".lock"});
  const auto full = store.check_room(std::uint64_t{1} << 60);
  REQUIRE_FALSE(full.has_value());
  CHECK(full.error().code == ErrorCode::io);
  CHECK(full.error().message.find("bytes are needed for checkpoints; make room") !=
        std::string::npos);
}

TEST_CASE("leftovers of crashed saves go, other files stay") {
  test::ScopedTempDir dir;
  test::write_text(dir.path() / ".tmp-step-00000003/shard-00000-of-00001.safetensors", "half");
  test::write_text(dir.path() / ".trash-step-00000001/COMMIT", "old");
  test::write_text(dir.path() / "notes.txt", "mine");
  test::write_text(dir.path() / "outside/keep", "mine");
  fs::create_directory_symlink(dir.path() / "outside", dir.path() / ".tmp-link");
  const CheckpointStore store = open_store(dir.path());
  CHECK(names_in(dir.path()) == std::set<std::string>{".lock", "notes.txt", "outside"});
  CHECK(fs::exists(dir.path() / "outside/keep"));
}

TEST_CASE("an old checkpoint that can not be removed prevents no save and no other removal") {
  test::ScopedTempDir dir;
  CheckpointStore store = open_store(dir.path());
  for (const std::int64_t step : {1, 2, 3}) REQUIRE(test_job::save(store, step));
  // Removals follow the rename and its sync; they begin with the folder's files.
  REQUIRE(file_ops::set_fault("checkpoint:3:eio"));
  CHECK_FALSE(store.retain(3, 1).has_value());
  CHECK(names_in(dir.path()) ==
        std::set<std::string>{".lock", ".trash-step-00000002", "step-00000003"});
  REQUIRE(file_ops::set_fault("checkpoint:1:eio"));
  REQUIRE(test_job::save(store, 2));
  CHECK(fs::exists(dir.path() / ".trash-step-00000002"));
  REQUIRE(file_ops::set_fault("checkpoint:3:eio"));
  CHECK_FALSE(store.retain(3, 1).has_value());  // its name in the trash is taken
  CHECK_FALSE(fs::exists(dir.path() / "step-00000002"));
  CHECK(names_in(dir.path()).size() == 4);
  REQUIRE(file_ops::set_fault(""));
  REQUIRE(test_job::save(store, 4));
  CHECK(names_in(dir.path()) == std::set<std::string>{".lock", "step-00000003", "step-00000004"});
}

TEST_CASE("two runs do not save to one folder") {
  test::ScopedTempDir dir;
  const CheckpointStore store = open_store(dir.path());
  const auto second = CheckpointStore::open(dir.path(), {"other"});
  REQUIRE_FALSE(second.has_value());
  CHECK(second.error().code == ErrorCode::checkpoint);
  CHECK(second.error().message.find("another run saves there (run test, attempt 1, pid ") !=
        std::string::npos);
}

TEST_CASE("a commit refuses shards that do not make the whole state") {
  test::ScopedTempDir dir;
  CheckpointStore store = open_store(dir.path());
  const auto folder = store.begin(7, 0);
  REQUIRE(folder.has_value());
  std::vector<ShardInfo> shards = {*test_job::write_one(*folder, 7, 0, 2)};
  auto refusal = [&] {
    const auto committed = store.commit(*folder, test_job::manifest_of(7), shards);
    REQUIRE_FALSE(committed.has_value());
    CHECK(committed.error().code == ErrorCode::checkpoint);
    CHECK_FALSE(fs::exists(dir.path() / "step-00000007"));
    return committed.error().message;
  };
  CHECK(refusal().find("elements") != std::string::npos);  // half of the state is missing
  shards.push_back(shards[0]);
  CHECK(refusal().find("used twice") != std::string::npos);
  shards[1] = *test_job::write_one(*folder, 7, 1, 2);
  ShardInfo good = shards[1];
  shards[1].pieces[0].type = StorageType::bf16;
  CHECK(refusal().find("another type or shape") != std::string::npos);
  shards[1] = good;
  shards[1].bytes += 1;
  CHECK(refusal().find("its rank reported") != std::string::npos);
  shards[1] = good;
  fs::rename(*folder / good.file, *folder / "away");
  CHECK(refusal().find("is the folder shared by all hosts?") != std::string::npos);
  fs::rename(*folder / "away", *folder / good.file);
  CHECK(store.commit(*folder, test_job::manifest_of(7), shards).has_value());
}

TEST_CASE("a save that can not fit is refused at its beginning") {
  test::ScopedTempDir dir;
  CheckpointStore store = open_store(dir.path());
  const auto folder = store.begin(7, std::uint64_t{1} << 60);
  REQUIRE_FALSE(folder.has_value());
  CHECK(folder.error().message.find("bytes are needed for checkpoints; make room") !=
        std::string::npos);
}

TEST_CASE("what the bits depend on is compared key by key") {
  CHECK(differences({{"isa", "amx"}}, {{"isa", "amx"}}).empty());
  CHECK(differences({{"a", "1"}, {"b", "2"}}, {{"b", "3"}, {"c", "4"}}) ==
        std::vector<std::string>{"a: was 1, is not recorded", "b: was 2, is 3",
                                 "c: was not recorded, is 4"});
}

TEST_CASE("damaged manifests and reports are errors, whatever the text") {
  test::ScopedTempDir dir;
  CheckpointStore store = open_store(dir.path());
  const auto folder = test_job::save(store, 3);
  const std::string good = test::read_text(*folder / "manifest.json");
  REQUIRE(parse_manifest(good, "m").has_value());
  for (std::size_t size = 0; size + 2 < good.size(); size += 3)
    CHECK_FALSE(parse_manifest(good.substr(0, size), "m").has_value());
  // One character changed to another: accepted or refused, never a crash.
  for (std::size_t at = 0; at < good.size(); ++at)
    for (const char c : {'0', '9', '-', '"', '}', 'x'}) {
      std::string text = good;
      text[at] = c;
      const auto parsed = parse_manifest(text, "m");
      if (!parsed) CHECK(parsed.error().code == ErrorCode::checkpoint);
    }
  auto replaced = [&](std::string_view from, std::string_view to) {
    std::string text = good;
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, from.size(), to);
    const auto parsed = parse_manifest(text, "m");
    REQUIRE_FALSE(parsed.has_value());
    return parsed.error().message;
  };
  CHECK(replaced("\"version\": 1", "\"version\": 2").find("format version 2") != std::string::npos);
  CHECK(replaced("\"format\": \"sortie", "\"format\": \"other").find("not a checkpoint") !=
        std::string::npos);
  CHECK(replaced("\"shard\": 1", "\"shard\": 2").find("not listed") != std::string::npos);
  CHECK(replaced("\"shard-00000", "\"../shard-00000").find("a path") != std::string::npos);
  CHECK(replaced("\"step\": 3", "\"step\": 3.5")
            .starts_with("m: not an integer; the checkpoint is "));
  CHECK(
      replaced("\"run_id\"", "\"run\"").starts_with("m: no \"run_id\"; the checkpoint is damaged"));
  CHECK_FALSE(replaced("\"tokens\": 6144", "\"tokens\": -1").empty());
  CHECK_FALSE(parse_shard_info("{").has_value());
  CHECK_FALSE(parse_shard_info(R"({"file":"a","bytes":-1,"sha256":"","pieces":[]})").has_value());
}

TEST_CASE("a place that can not be looked at is not one that does not exist") {
  test::ScopedTempDir dir;
  const auto error_of = [&] {
    const auto opened = open_checkpoint(dir / "step-00000001", CheckDepth::sizes, {});
    REQUIRE_FALSE(opened);
    return opened.error();
  };
  CHECK(error_of().message.find(": no such folder; name a checkpoint") != std::string::npos);
  // As for a user who may not read a folder above.
  test::without_call(
      SYS_newfstatat,
      [&] {
        const Error error = error_of();
        CHECK(error.code == ErrorCode::io);
        CHECK(error.message == dir.str("step-00000001") + ": Permission denied");
      },
      EACCES);
}

}  // namespace sortie::trainer
