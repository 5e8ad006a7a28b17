// The files of a checkpoint besides its shards: listed with their hashes, and compared.
#include "trainer/checkpoint/extra_files.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/support/temp_dir.h"
#include "tests/trainer/checkpoint/checkpoint_fixture.h"

namespace sortie::trainer {
namespace fs = std::filesystem;

TEST_CASE("a changed byte of a file besides the shards is found where that is asked for") {
  test::ScopedTempDir dir;
  auto store = CheckpointStore::open(dir.path() / "save", {"test"});
  REQUIRE(store);
  const auto begun = store->begin(3, 10'000);
  REQUIRE(begun);
  test::write_text(*begun / "tokenizer/about.json", "{}");
  test::write_text(*begun / "tokenizer/large", std::string((2u << 20) + 1, 'x'));
  test::write_text(*begun / "huggingface/config.json", "{\"a\": 1}");
  fs::create_symlink("/etc/passwd", *begun / "tokenizer/link");
  std::vector<ShardInfo> shards;
  for (std::size_t i = 0; i < 2; ++i) shards.push_back(*test_job::write_one(*begun, 3, i, 2));
  const auto folder = store->commit(*begun, test_job::manifest_of(3), shards);
  REQUIRE(folder);
  const auto check = [&](CheckDepth depth) {
    const auto checked = check_checkpoint(*folder, depth);
    return checked ? std::string("good") : checked.error().message;
  };
  const auto manifest = check_checkpoint(*folder, CheckDepth::files);
  REQUIRE_MESSAGE(manifest, manifest.error().message);
  std::vector<std::string> names;
  for (const Manifest::File& file : manifest->files) names.push_back(file.file);
  CHECK(names == std::vector<std::string>{"huggingface/config.json", "tokenizer/about.json",
                                          "tokenizer/large"});
  CHECK(manifest->files[2].bytes == (2u << 20) + 1);
  test::write_text(*folder / "huggingface/config.json", "{\"a\": 2}");
  CHECK(check(CheckDepth::files).find("huggingface/config.json: SHA-256 is") != std::string::npos);
  CHECK(check(CheckDepth::hashes) == "good");
  test::write_text(*folder / "huggingface/config.json", "{\"a\": 1}");
  CHECK(check(CheckDepth::files) == "good");
  fs::remove(*folder / "tokenizer/large");
  CHECK(check(CheckDepth::files).find("tokenizer/large: No such file") != std::string::npos);
  const std::string text = to_json(*manifest);
  for (const char* other : {"", "/etc/passwd", "../../x", "tokenizer/../../x"}) {
    std::string changed = text;
    changed.replace(changed.find("tokenizer/large"), 15, other);
    const auto refused = parse_manifest(changed, "m");
    REQUIRE_FALSE(refused);
    CHECK(refused.error().message.find("outside the checkpoint") != std::string::npos);
  }
}

}  // namespace sortie::trainer
