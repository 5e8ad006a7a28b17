// Tests of exports and probes of checkpoints with low-rank updates, and of tensors that no
// parameter uses.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "common/base/atomic_file.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text.h"
#include "tests/support/tiny_training.h"
#include "trainer/checkpoint/find.h"
#include "trainer/hf/import.h"
#include "trainer/hf/probe.h"
#include "trainer/state/merge.h"
#include "trainer/storage/sha256.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;

namespace {

/// Trains a checkpoint of plain weights in `dir`/base, and one of low-rank updates to them in
/// `dir`/lora.
void train_updates(const sortie::test::ScopedTempDir& dir, const std::string& architecture) {
  const auto communicator = make_single_communicator();
  config::JobConfig job = tiny_job(architecture);
  job.trainer.save_dir = dir.str("base");
  job.trainer.train_iterations = 2;
  REQUIRE(TinyTraining(job, *communicator).trainer->run());
  job.trainer.load_weights_from = job.trainer.save_dir;
  job.trainer.save_dir = dir.str("lora");
  job.trainer.train_iterations = 6;
  job.lora.rank = 3;
  job.lora.alpha = 12;
  job.lora.modules = {"*.attention.*", "layers.1.mlp.*"};
  REQUIRE(TinyTraining(job, *communicator).trainer->run());
}

std::string exported(const std::filesystem::path& checkpoint, const std::filesystem::path& out) {
  const auto report = export_hf(checkpoint, out, {});
  REQUIRE_MESSAGE(report, (report ? "" : report.error().message));
  return read_file(out / "model.safetensors").value();
}

std::string probed(const std::filesystem::path& model, const sortie::test::ScopedTempDir& dir) {
  sortie::test::write_text(dir / "ids.json", R"({"input_ids": [[5, 0, 36, 7, 7, 20, 11, 2]]})");
  ProbeOptions options;
  options.tokens = dir / "ids.json";
  options.out = dir / "probe.safetensors";
  const auto done = probe(model, options);
  REQUIRE_MESSAGE(done, (done ? "" : done.error().message));
  std::string bytes = read_file(options.out).value();
  std::filesystem::remove(options.out);
  return bytes;
}

}  // namespace

TEST_CASE("an export of low-rank updates has them in its weights, with the bits of merge-lora") {
  for (const char* architecture : {"llama", "gpt2", "gpt-neo-x"}) {  // plain, transposed, per head
    CAPTURE(architecture);
    const sortie::test::ScopedTempDir dir;
    train_updates(dir, architecture);
    const auto loaded = load_model(dir.str("lora"), 1, "f32");
    REQUIRE(loaded);
    REQUIRE(write_merged(**loaded, dir / "merged"));
    const std::string base = exported(dir / "base", dir / "base-hf"),
                      updated = exported(dir / "lora", dir / "lora-hf"),
                      merged = exported(dir / "merged", dir / "merged-hf");
    CHECK(updated == merged);
    CHECK(updated != base);
    CHECK(updated.size() == base.size());
    // A probe computes the same with the checkpoint and with its export.
    CHECK(probed(dir / "lora", dir) == probed(dir / "lora-hf", dir));
    CHECK(probed(dir / "lora", dir) != probed(dir / "base", dir));
  }
}

TEST_CASE("a checkpoint with tensors that its model does not have is neither exported nor loaded") {
  const sortie::test::ScopedTempDir dir;
  train_updates(dir, "llama");
  const std::filesystem::path folder = find_latest(dir / "lora")->entry->folder;
  // The config does not mention the updates, as if a program did not know the key.
  auto manifest = nlohmann::ordered_json::parse(read_file(folder / kManifestFile).value());
  std::string text = manifest["config"];
  const std::string rank = "\nrank = 3\n";
  REQUIRE(text.find(rank) != text.npos);
  text.replace(text.find(rank), rank.size(), "\nrank = 0\n");
  manifest["config"] = text;
  const std::string changed = manifest.dump();
  REQUIRE(write_file_atomic(folder / kManifestFile, changed));
  REQUIRE(write_file_atomic(folder / kCommitFile, commit_text(sha256_hex(changed))));

  const auto refused = [&](const auto& result) {
    REQUIRE_FALSE(result);
    CHECK(result.error().code == ErrorCode::checkpoint);
    CHECK_MESSAGE(
        sortie::test::has(result.error().message,
                          folder.string() +
                              ": the model of its config does not have these tensors: "
                              "model.layers.0.attention.out.lora_down, "
                              "model.layers.0.attention.out.lora_up, "
                              "model.layers.0.attention.qkv.lora_down and 9 more; use the version"),
        result.error().message);
  };
  refused(export_hf(folder, dir / "out", {}));
  refused(load_model(folder, 1, "f32"));
  CHECK_FALSE(std::filesystem::exists(dir / "out"));
}
