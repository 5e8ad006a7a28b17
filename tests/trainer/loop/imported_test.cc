// Tests of training that starts from a Hugging Face folder and is exported to one.
#include <doctest/doctest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "common/base/atomic_file.h"
#include "tests/support/tiny_training.h"
#include "trainer/hf/import.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;
namespace fs = std::filesystem;

TEST_CASE("an imported model is trained and exported, and keeps what its folder had") {
  const fs::path scratch =
      fs::temp_directory_path() / ("sortie-imported-" + std::to_string(::getpid()));
  fs::remove_all(scratch);
  const fs::path source = scratch / "source";
  fs::create_directories(source);
  const fs::path fixture = SORTIE_TEST_DATA "/hf/qwen2-a";
  for (const char* name : {"config.json", "model.safetensors", "generation_config.json"})
    fs::copy_file(fixture / name, source / name);
  REQUIRE(write_file_atomic(source / "chat_template.jinja", "{{ messages }}"));
  REQUIRE(write_file_atomic(source / "tokenizer.json", byte_tokenizer_json()));
  const auto imported = import_hf(source, scratch / "imported");
  REQUIRE_MESSAGE(imported, (imported ? "" : imported.error().message));

  config::JobConfig job = tiny_job();
  job.model = open_model(scratch / "imported", {}).value().config;
  job.model.sequence_length = 19;  // the model supports 40
  job.model.precision = "f32";
  job.trainer.load_dir = (scratch / "imported").string();
  job.trainer.save_dir = (scratch / "run").string();
  job.trainer.train_iterations = 4;
  job.trainer.save_interval = 2;
  job.trainer.keep_last = 1;  // so later checkpoints carry over what a removed one had
  const auto communicator = make_single_communicator();
  TinyTraining training(job, *communicator);
  CHECK(training.trainer->progress().step == 0);
  const OpenedModel original = open_model(source, {.device = device()}).value();
  // The weights are those of the folder, and the moments are zero.
  const auto master = host_values(training.trainer->store(), training.trainer->store().master());
  const auto original_master = host_values(*original.store, original.store->master());
  for (const auto& parameter : training.trainer->store().parameters()) {
    CAPTURE(parameter->name());
    const Parameter* same = original.store->find(parameter->name());
    REQUIRE(same != nullptr);
    CHECK(std::equal(master.begin() + parameter->offset(),
                     master.begin() + parameter->offset() + parameter->elements(),
                     original_master.begin() + same->offset()));
  }
  for (const float moment :
       host_values(training.trainer->store(), training.trainer->store().moment1()))
    CHECK(moment == 0.0f);
  REQUIRE(training.trainer->run());

  const auto exported = export_hf(scratch / "run", scratch / "out", {});
  REQUIRE_MESSAGE(exported, (exported ? "" : exported.error().message));
  for (const char* name : {"generation_config.json", "chat_template.jinja", "tokenizer.json"}) {
    CAPTURE(name);
    CHECK(read_file(scratch / "out" / name).value() == read_file(source / name).value());
  }
  using Json = nlohmann::json;
  CHECK(Json::parse(read_file(scratch / "out" / "config.json").value()) ==
        Json::parse(read_file(source / "config.json").value()));
  const OpenedModel trained = open_model(scratch / "out", {.device = device()}).value();
  const auto after = host_values(training.trainer->store(), training.trainer->store().master());
  const auto trained_master = host_values(*trained.store, trained.store->master());
  const Parameter* embedding = trained.store->find("embedding.weight");
  const Parameter* mine = training.trainer->store().find("embedding.weight");
  // Compares all rows of the vocabulary. Its padding is not exported.
  const std::int64_t count = 37 * 16;
  CHECK(std::equal(after.begin() + mine->offset(), after.begin() + mine->offset() + count,
                   trained_master.begin() + embedding->offset()));
  CHECK_FALSE(
      std::equal(after.begin() + mine->offset(), after.begin() + mine->offset() + count,
                 original_master.begin() + original.store->find("embedding.weight")->offset()));
  fs::remove_all(scratch);
}
