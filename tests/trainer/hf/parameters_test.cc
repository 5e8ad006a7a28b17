// What a plan says of a model is what the trainer declares.
#include "common/model/parameters.h"

#include <doctest/doctest.h>

#include <map>

#include "common/config/architectures.h"
#include "trainer/hf/folder.h"
#include "trainer/models/model.h"
#include "trainer/nn/lora.h"

namespace sortie::trainer {
namespace {

model::Use use_of(const ParameterSpec& spec) {
  switch (spec.use) {
    case Use::matrix:
      return model::Use::matrix;
    case Use::f32_matrix:
      return model::Use::f32_matrix;
    case Use::vector:
      return model::Use::vector;
    case Use::state:
      return model::Use::state;
  }
  return model::Use::state;
}

/// Nothing is allocated for the weights: the store is never finalized.
void check_declared(const config::JobConfig& job) {
  ExecutionContext context(1);
  ParameterStore store;
  const LanguageModel language_model(context, job.model, store, false);
  const auto added = add_lora(job.lora, store);
  REQUIRE(added.has_value());
  const auto frozen = freeze_parameters(job, store);
  REQUIRE(frozen.has_value());
  const auto facts = model::model_facts(job);
  REQUIRE(facts.has_value());
  const std::vector<model::ParameterInfo>& planned = facts->parameters;

  std::map<std::string, const model::ParameterInfo*> by_name;
  for (const model::ParameterInfo& parameter : planned) by_name[parameter.name] = &parameter;
  CHECK(by_name.size() == planned.size());
  CHECK(planned.size() == store.parameters().size());
  std::int64_t elements = 0;
  for (const auto& declared : store.parameters()) {
    const ParameterSpec& spec = declared->spec();
    CAPTURE(spec.name);
    REQUIRE(by_name.contains(spec.name));
    const model::ParameterInfo& parameter = *by_name[spec.name];
    REQUIRE(static_cast<int>(parameter.shape.size()) == spec.shape.dims());
    for (int dim = 0; dim < spec.shape.dims(); ++dim)
      CHECK(parameter.shape[static_cast<std::size_t>(dim)] == spec.shape[dim]);
    CHECK(parameter.use == use_of(spec));
    CHECK(parameter.trained == declared->trained());
    CHECK((parameter.lora_rank > 0) == declared->low_rank().has_value());
    if (spec.use != Use::state) elements += parameter.elements();
  }
  CHECK(elements == store.parameter_elements());
}

config::JobConfig job_of(const config::ModelConfig& model) {
  config::JobConfig job;
  job.model = model;
  return job;
}

}  // namespace

TEST_CASE("every preset: a plan has the trainer's parameters") {
  for (const config::Preset& preset : config::presets()) {
    CAPTURE(std::string(preset.name));
    check_declared(job_of(preset.model));
  }
}

TEST_CASE("every reference model: a plan has the trainer's parameters, with and without LoRA") {
  int folders = 0;
  for (const auto& entry : std::filesystem::directory_iterator(SORTIE_TEST_DATA "/hf")) {
    const auto folder = HfFolder::open(entry.path());
    REQUIRE(folder.has_value());
    ++folders;
    CAPTURE(entry.path().string());
    config::JobConfig job = job_of(folder->model());
    check_declared(job);
    job.optimizer.freeze = {"embedding.*", "layers.0.*"};
    check_declared(job);
    job.optimizer.freeze.clear();
    job.lora.rank = 3;
    job.lora.modules = {"*.attention.*"};
    check_declared(job);
  }
  CHECK(folders > 20);
}

TEST_CASE("multi-token prediction and queries of low rank are planned as they are declared") {
  const config::Preset* openseek = config::find_preset("openseek-small");
  REQUIRE(openseek != nullptr);
  config::JobConfig job = job_of(openseek->model);
  job.model.mtp.num_layers = 2;
  job.model.mla.q_lora_rank = 384;
  check_declared(job);
}

}  // namespace sortie::trainer
