// Compares the likeliest text of every family with that of transformers' generate()
// (tests/data/hf/*/greedy.json, by scripts/make_hf_fixtures.py), with and without the cache of keys
// and values.
#include <doctest/doctest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "common/base/atomic_file.h"
#include "tests/support/flat_values.h"
#include "trainer/hf/import.h"
#include "trainer/inference/generate.h"
#include "trainer/state/model_loader.h"

using namespace sortie;
using namespace sortie::trainer;
namespace fs = std::filesystem;

TEST_CASE("greedy text of imported models is that of transformers") {
  using Tokens = std::vector<std::int32_t>;
  const fs::path scratch =
      fs::temp_directory_path() / ("sortie-greedy-" + std::to_string(::getpid()));
  std::size_t models = 0;
  for (const auto& folder : fs::directory_iterator(SORTIE_TEST_DATA "/hf")) {
    const std::string name = folder.path().filename();
    CAPTURE(name);
    fs::remove_all(scratch);
    const auto imported = import_hf(folder.path(), scratch);
    REQUIRE_MESSAGE(imported, (imported ? "" : imported.error().message));
    const auto loaded = load_model(scratch, 1, "f32", trainer::test::device());
    REQUIRE_MESSAGE(loaded, (loaded ? "" : loaded.error().message));
    const auto expected = nlohmann::json::parse(read_file(folder.path() / "greedy.json").value());
    REQUIRE(expected["prompts"].size() == 2);
    for (std::size_t i = 0; i < 2; ++i) {
      const Tokens prompt = expected["prompts"][i], want = expected["continuations"][i];
      for (const bool cache : {true, false}) {
        CAPTURE(i);
        CAPTURE(cache);
        SamplingOptions options;
        options.temperature = 0;
        options.cache = cache;
        options.max_tokens = static_cast<std::int64_t>(want.size());
        Tokens got;
        generate((*loaded)->context, *(*loaded)->model, prompt, options, [&](std::int32_t token) {
          got.push_back(token);
          return true;
        });
        CHECK(got == want);
      }
    }
    ++models;
  }
  CHECK(models >= 21);
  fs::remove_all(scratch);
}

TEST_CASE("an imported model speaks with the tokenizer of its folder, and stops where that says") {
  const fs::path scratch =
      fs::temp_directory_path() / ("sortie-stop-" + std::to_string(::getpid()));
  const fs::path source = scratch / "source", data = SORTIE_TEST_DATA;
  const auto loaded = [&](const nlohmann::json& ends) {
    fs::remove_all(scratch);
    fs::create_directories(source);
    for (const char* name : {"config.json", "model.safetensors"})
      fs::copy_file(data / "hf" / "llama-a" / name, source / name);
    fs::copy_file(data / "tokenizer" / "llama3.json", source / "tokenizer.json");
    REQUIRE(write_file_atomic(source / "generation_config.json",
                              nlohmann::json{{"eos_token_id", ends}}.dump()));
    REQUIRE(import_hf(source, scratch / "checkpoint"));
    return load_model(scratch / "checkpoint", 1, "f32", trainer::test::device()).value();
  };
  const auto model = loaded({5, 7});
  const auto tokenizer = model->tokenizer().value();
  CHECK(tokenizer->vocab_size() == 1503);
  CHECK(model->stop_tokens(*tokenizer).value() == std::vector<std::int32_t>{5, 7});
  CHECK(loaded(9)->stop_tokens(*tokenizer).value() == std::vector<std::int32_t>{9});
  // If it is absent, the id in config.json counts, then the tokenizer's.
  CHECK(loaded(nullptr)->stop_tokens(*tokenizer).value() == std::vector<std::int32_t>{1});
  const auto wrong = loaded("</s>")->stop_tokens(*tokenizer);
  REQUIRE_FALSE(wrong);
  CHECK(wrong.error().message.find("eos_token_id is \"</s>\", which is no token") !=
        std::string::npos);
  fs::remove_all(scratch);
}
