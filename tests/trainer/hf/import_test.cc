// Tests of import and export of Hugging Face folders: byte for byte, in shards, in old formats; and
// of what is refused.
#include "trainer/hf/import.h"

#include <algorithm>
#include <cstring>

#include "tests/support/captured_stderr.h"
#include "tests/support/temp_dir.h"
#include "tests/trainer/hf/folders.h"
#include "trainer/checkpoint/file_ops.h"
#include "trainer/hf/probe.h"

namespace sortie::trainer {
using namespace test;
namespace {

std::string import_error(const fs::path& folder, const Scratch& scratch) {
  const auto imported = import_hf(folder, scratch.path / "bad");
  return imported ? "no error" : imported.error().message;
}

void import_and_export(const fs::path& folder, const Scratch& scratch, const fs::path& out,
                       const ExportOptions& options = {}) {
  const fs::path checkpoint = scratch.path / "checkpoint";
  fs::remove_all(checkpoint);
  const auto imported = import_hf(folder, checkpoint);
  REQUIRE_MESSAGE(imported, (imported ? "" : imported.error().message));
  const auto exported = export_hf(checkpoint, out, options);
  REQUIRE_MESSAGE(exported, (exported ? "" : exported.error().message));
  // What is reported is what the folder has: no padding of the vocabulary, no router's bias.
  std::int64_t elements = 0, tensors = 0;
  for (const auto& [name, entry] : all_tensors(out)) {
    ++tensors;
    if (name.ends_with("e_score_correction_bias")) continue;
    std::int64_t size = 1;
    for (const std::int64_t side : entry.shape) size *= side;
    elements += size;
  }
  CHECK(exported->tensors == tensors);
  CHECK(exported->parameters == elements);
}

}  // namespace

TEST_CASE("every family comes back byte for byte, whole and in shards, with its config.json") {
  const Scratch scratch;
  for (const auto& folder : fs::directory_iterator(kData)) {
    const std::string name = folder.path().filename();
    CAPTURE(name);
    const Tensors original = tensors_of(folder.path() / "model.safetensors");
    import_and_export(folder, scratch, scratch.path / "out");
    check_same(all_tensors(scratch.path / "out"), original);
    CHECK(json_of(scratch.path / "out" / "config.json") == json_of(folder.path() / "config.json"));
    CHECK(json_of(scratch.path / "out" / "generation_config.json") ==
          json_of(folder.path() / "generation_config.json"));
    fs::remove_all(scratch.path / "out");

    import_and_export(folder, scratch, scratch.path / "shards", {.max_shard_bytes = 5000});
    check_same(all_tensors(scratch.path / "shards"), original);
    const Json index = json_of(scratch.path / "shards" / "model.safetensors.index.json");
    CHECK(index["weight_map"].size() == original.size());
    std::uint64_t total = 0;
    for (const auto& [tensor, entry] : original) total += entry.data.size();
    CHECK(index["metadata"]["total_size"] == total);
    // A folder of shards can be imported like any other.
    import_and_export(scratch.path / "shards", scratch, scratch.path / "again");
    check_same(all_tensors(scratch.path / "again"), original);
    fs::remove_all(scratch.path / "shards");
    fs::remove_all(scratch.path / "again");
  }
}

TEST_CASE("an import into a folder with a checkpoint is refused, and changes nothing there") {
  const Scratch scratch;
  const fs::path source = kData / "llama-a", run = scratch.path / "run";
  REQUIRE(import_hf(source, run));
  fs::rename(run / "step-00000000", run / "step-00000700");  // as after training
  fs::remove(run / ".lock");
  const auto refused = import_hf(source, run);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::usage);
  CHECK(refused.error().message.find((run / "step-00000700").string()) != std::string::npos);
  std::size_t entries = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(run)) ++entries;
  CHECK(entries == 1);
}

TEST_CASE("bf16 and f16 weights come back byte for byte, each tensor in its own type") {
  const Scratch scratch;
  for (const auto& [name, alike] : {std::pair("gpt2-a", false),
                                    {"gpt-neo-x-a", false},
                                    {"qwen2-a", false},
                                    {"mixtral-a", false},
                                    {"qwen3-moe-a", false},
                                    {"deepseek-v3-a", false},
                                    {"gpt2-a", true},
                                    {"gpt-neo-x-a", true},
                                    {"qwen2-a", true},
                                    {"deepseek-v3-a", true}}) {
    CAPTURE(name);
    // If true, parameters that are assembled from several tensors keep their type.
    CAPTURE(alike);
    const fs::path folder = copy_of(scratch, name);
    Tensors mixed = tensors_of(folder / "model.safetensors");
    int which = 0;
    for (auto& [tensor, entry] : mixed) {
      const StorageType types[] = {StorageType::bf16, StorageType::f16, StorageType::f32};
      const StorageType type = types[alike ? 0 : which++ % 3];
      if (type == StorageType::f32) continue;
      std::vector<std::byte> narrow(entry.data.size() / 2);
      for (std::size_t i = 0; i < narrow.size() / 2; ++i) {
        // Bit patterns of finite numbers, spread over the whole range.
        std::uint16_t bits = static_cast<std::uint16_t>(i * 40503u);
        const std::uint16_t exponent = type == StorageType::f16 ? 0x7c00 : 0x7f80;
        if ((bits & exponent) == exponent) bits = static_cast<std::uint16_t>(bits & ~exponent);
        std::memcpy(narrow.data() + 2 * i, &bits, 2);
      }
      entry.type = type;
      entry.data = std::move(narrow);
    }
    write_tensors(folder / "model.safetensors", mixed);
    import_and_export(folder, scratch, scratch.path / "out");
    check_same(all_tensors(scratch.path / "out"), mixed);
    fs::remove_all(scratch.path / "out");
    import_and_export(folder, scratch, scratch.path / "shards", {.max_shard_bytes = 3000});
    CHECK(fs::exists(scratch.path / "shards" / "model.safetensors.index.json"));
    import_and_export(scratch.path / "shards", scratch, scratch.path / "out");
    check_same(all_tensors(scratch.path / "out"), mixed);
    fs::remove_all(scratch.path / "shards");
    fs::remove_all(scratch.path / "out");
    fs::remove_all(folder);
  }
}

TEST_CASE("the same model with the config.json of transformers 4") {
  const Scratch scratch;
  const fs::path folder = copy_of(scratch, "deepseek-v3-b");  // uses yarn
  Json json = json_of(folder / "config.json");
  Json rope = json["rope_parameters"];
  json.erase("rope_parameters");
  json["rope_theta"] = rope["rope_theta"];
  rope.erase("rope_theta");
  rope["type"] = rope["rope_type"];
  rope.erase("rope_type");
  json["rope_scaling"] = rope;
  json["torch_dtype"] = json["dtype"];
  json.erase("dtype");
  write_json(folder / "config.json", json);
  ProbeOptions options;
  options.tokens = scratch.path / "ids.json";
  options.out = scratch.path / "new.safetensors";
  write_json(options.tokens, {{"input_ids", Json::array({{5, 0, 36, 7, 7, 20, 11, 2, 3, 9}})}});
  REQUIRE(probe(kData / "deepseek-v3-b", options));
  options.out = scratch.path / "old.safetensors";
  REQUIRE(probe(folder, options));
  check_same(tensors_of(scratch.path / "old.safetensors"),
             tensors_of(scratch.path / "new.safetensors"));
  // The export keeps the spelling of transformers 4.
  import_and_export(folder, scratch, scratch.path / "out");
  CHECK(json_of(scratch.path / "out" / "config.json") == json);
}

TEST_CASE("--dtype rounds all weights and says so in config.json") {
  const Scratch scratch;
  import_and_export(kData / "llama-a", scratch, scratch.path / "out", {.type = StorageType::bf16});
  CHECK(json_of(scratch.path / "out" / "config.json")["dtype"] == "bfloat16");
  const Tensors original = tensors_of(kData / "llama-a" / "model.safetensors");
  for (const auto& [name, entry] : all_tensors(scratch.path / "out")) {
    CHECK(entry.type == StorageType::bf16);
    const auto& wide = original.at(name).data;
    REQUIRE(entry.data.size() * 2 == wide.size());
    for (std::size_t i = 0; i < entry.data.size() / 2; ++i) {
      float value;
      std::memcpy(&value, wide.data() + 4 * i, 4);
      const bf16 narrow(value);
      CHECK(std::memcmp(&narrow, entry.data.data() + 2 * i, 2) == 0);
    }
  }
}

TEST_CASE(
    "old GPT-2 and NeoX folders: no prefix, buffers of the attention, a tied head stored twice") {
  const Scratch scratch;
  const fs::path folder = copy_of(scratch, "gpt2-a");
  Tensors old, weights;
  for (const auto& [name, entry] : tensors_of(folder / "model.safetensors")) {
    CHECK(name.starts_with("transformer."));
    old[name.substr(12)] = entry;
  }
  weights = old;
  old["h.0.attn.bias"] = {StorageType::u8, {1, 1, 2, 2}, std::vector<std::byte>(4)};
  old["h.1.attn.masked_bias"] = {StorageType::f32, {}, std::vector<std::byte>(4)};
  old["lm_head.weight"] = old.at("wte.weight");
  write_tensors(folder / "model.safetensors", old);
  import_and_export(folder, scratch, scratch.path / "out");
  check_same(all_tensors(scratch.path / "out"), weights);

  old["lm_head.weight"].data[0] ^= std::byte{1};
  write_tensors(folder / "model.safetensors", old);
  CHECK(import_error(folder, scratch)
            .find("lm_head.weight, which tie_word_embeddings makes the "
                  "embedding, differs from it") != std::string::npos);

  const fs::path neox = copy_of(scratch, "gpt-neo-x-a");
  old = tensors_of(neox / "model.safetensors");
  weights = old;
  for (const char* buffer : {"bias", "masked_bias", "rotary_emb.inv_freq"})
    old[std::string("gpt_neox.layers.0.attention.") + buffer] = {
        StorageType::f32, {2}, std::vector<std::byte>(8)};
  write_tensors(neox / "model.safetensors", old);
  import_and_export(neox, scratch, scratch.path / "neox");
  check_same(all_tensors(scratch.path / "neox"), weights);
}

TEST_CASE("missing, unexpected, misshapen and mistyped tensors are listed at once") {
  const Scratch scratch;
  const fs::path folder = copy_of(scratch, "llama-a");
  Tensors tensors = tensors_of(folder / "model.safetensors");
  tensors.erase("model.norm.weight");
  tensors["model.layers.0.self_attn.q_proj.bias"] = {
      StorageType::f32, {16}, std::vector<std::byte>(64)};
  Entry& turned = tensors.at("model.layers.1.mlp.down_proj.weight");
  std::swap(turned.shape[0], turned.shape[1]);
  Entry& typed = tensors.at("model.layers.1.mlp.up_proj.weight");
  typed.type = StorageType::i32;
  write_tensors(folder / "model.safetensors", tensors);
  const std::string error = import_error(folder, scratch);
  CAPTURE(error);
  CHECK(error.find("4 tensors are not those of a LlamaForCausalLM") != std::string::npos);
  for (const char* line :
       {"missing: model.norm.weight [16]", "unexpected: model.layers.0.self_attn.q_proj.bias [16]",
        "wrong shape: model.layers.1.mlp.down_proj.weight is [24, 16], config.json asks for [16, "
        "24]",
        "wrong type: model.layers.1.mlp.up_proj.weight is I32, weights are F32, BF16 or F16"})
    CHECK(error.find(line) != std::string::npos);
  CHECK_FALSE(fs::exists(scratch.path / "bad"));
}

TEST_CASE("an index that leads out of the folder, or nowhere, is refused") {
  const Scratch scratch;
  const fs::path folder = copy_of(scratch, "llama-a");
  const auto with_index = [&](const Json& json) {
    write_json(folder / "model.safetensors.index.json", json);
    return import_error(folder, scratch);
  };
  for (const char* file : {"../secret.safetensors", "/etc/passwd", "", ".."}) {
    CAPTURE(file);
    CHECK(with_index({{"weight_map", {{"a", file}}}}).find("which is no file of the folder") !=
          std::string::npos);
  }
  CHECK(with_index({{"weight_map", {{"a", 3}}}}).find("is no text") != std::string::npos);
  CHECK(with_index({{"weight_map", Json::object()}}).find("names no file") != std::string::npos);
  CHECK(with_index(Json::array()).find("no weight_map") != std::string::npos);
  CHECK(with_index({{"weight_map", {{"a", "absent.safetensors"}}}}).find("absent.safetensors") !=
        std::string::npos);
  REQUIRE(write_file_atomic(folder / "model.safetensors.index.json", "{"));
  CHECK(import_error(folder, scratch).find("not JSON") != std::string::npos);
}

TEST_CASE("a damaged safetensors file is refused, whichever bytes are wrong") {
  const Scratch scratch;
  const fs::path folder = copy_of(scratch, "qwen3-b");
  const std::string good = read_file(folder / "model.safetensors").value();
  for (const std::size_t cut :
       {std::size_t{0}, std::size_t{7}, std::size_t{100}, good.size() - 1}) {
    CAPTURE(cut);
    REQUIRE(write_file_atomic(folder / "model.safetensors", good.substr(0, cut)));
    CHECK(import_error(folder, scratch).find("model.safetensors") != std::string::npos);
  }
  std::string huge = good;
  huge[7] = '\x7f';  // a header of 2^62 bytes
  REQUIRE(write_file_atomic(folder / "model.safetensors", huge));
  CHECK(import_error(folder, scratch).find("over the limit") != std::string::npos);
}

TEST_CASE("an import reports how much of the checkpoint is written") {
  const Scratch scratch;
  std::uint64_t done = 0, total = 0;
  int reports = 0;
  const auto imported =
      import_hf(kData / "llama-a", scratch.path / "checkpoint", [&](const WorkProgress& work) {
        CHECK(work.stage == "writing the checkpoint");
        CHECK(work.unit == "");
        CHECK(work.done > done);
        CHECK((total == 0 || work.total == total));
        done = work.done;
        total = work.total;
        ++reports;
      });
  REQUIRE(imported);
  CHECK(reports > 1);
  CHECK(done == total);
  CHECK(total > 0);
}

TEST_CASE("an export reports how far it is, from the reading of the checkpoint on") {
  const Scratch scratch;
  std::vector<std::string> stages;
  bool ended = false;
  ExportOptions options;
  options.progress = [&](const WorkProgress& work) {
    if (stages.empty() || stages.back() != work.stage) stages.emplace_back(work.stage);
    ended = work.done == work.total;
  };
  import_and_export(kData / "llama-a", scratch, scratch.path / "out", options);
  CHECK(stages == std::vector<std::string>{"checking the checkpoint", "loading checkpoint",
                                           "writing weights"});
  CHECK(ended);
}

TEST_CASE("a checkpoint with a changed byte is not exported") {
  const Scratch scratch;
  const auto imported = import_hf(kData / "llama-a", scratch.path / "checkpoint");
  REQUIRE(imported);
  fs::path shard;
  for (const auto& entry : fs::directory_iterator(imported->checkpoint))
    if (entry.path().extension() == ".safetensors") shard = entry.path();
  std::string bytes = read_file(shard).value();
  bytes[bytes.size() - 5] ^= 1;
  REQUIRE(write_file_atomic(shard, bytes));
  const auto exported = export_hf(scratch.path / "checkpoint", scratch.path / "out", {});
  REQUIRE_FALSE(exported);
  CHECK(exported.error().code == ErrorCode::checkpoint);
  CHECK(exported.error().message.find("the file was changed") != std::string::npos);
  CHECK_FALSE(fs::exists(scratch.path / "out"));
}

TEST_CASE("an export into a folder whose name ends with a slash, new or empty") {
  const Scratch scratch;
  import_and_export(kData / "llama-a", scratch, scratch.path / "new" / "");
  CHECK(fs::exists(scratch.path / "new" / "config.json"));
  fs::create_directories(scratch.path / "empty");
  import_and_export(kData / "llama-a", scratch, scratch.path / "empty" / "");
  CHECK(fs::exists(scratch.path / "empty" / "config.json"));
  CHECK_FALSE(fs::exists(scratch.path / "empty.tmp"));
}

TEST_CASE("an export does not touch what is there, and leaves nothing behind when it fails") {
  const Scratch scratch;
  import_and_export(kData / "llama-a", scratch, scratch.path / "out");
  const auto again = export_hf(scratch.path / "checkpoint", scratch.path / "out", {});
  REQUIRE_FALSE(again);
  CHECK(again.error().code == ErrorCode::usage);
  CHECK_FALSE(export_hf(scratch.path / "nowhere", scratch.path / "new", {}));
  CHECK_FALSE(fs::exists(scratch.path / "new"));
  CHECK_FALSE(fs::exists(scratch.path / "new.tmp"));
}

TEST_CASE("probe writes logits, loss, gradients and activations; bad tokens are refused") {
  const Scratch scratch;
  const fs::path folder = kData / "gpt2-a";
  const SafetensorsFile reference = SafetensorsFile::open(folder / "reference.safetensors").value();
  const auto rows = [&](const char* name) {
    const TensorEntry& entry = *reference.find(name);
    const auto* values = reinterpret_cast<const std::int32_t*>(reference.data(entry).data());
    Json list = Json::array();
    for (std::int64_t row = 0; row < entry.shape[0]; ++row)
      list.push_back(std::vector<std::int32_t>(values + row * entry.shape[1],
                                               values + (row + 1) * entry.shape[1]));
    return list;
  };
  ProbeOptions options;
  options.tokens = scratch.path / "ids.json";
  options.out = scratch.path / "out.safetensors";
  options.gradients = true;
  options.activations = "layers.1.*";
  write_json(options.tokens, {{"input_ids", rows("input_ids")}, {"labels", rows("labels")}});
  const auto done = probe(folder, options);
  REQUIRE_MESSAGE(done, (done ? "" : done.error().message));
  const Tensors out = tensors_of(options.out);
  CHECK(out.at("logits").shape == Dims{2, 12, 37});
  CHECK(out.at("loss").shape == Dims{});
  float loss = 0, expected = 0;
  std::memcpy(&loss, out.at("loss").data.data(), 4);
  std::memcpy(&expected, reference.data(*reference.find("loss")).data(), 4);
  CHECK(loss == doctest::Approx(expected).epsilon(1e-5));
  int gradients = 0, activations = 0;
  for (const auto& [name, entry] : out) {
    if (name.starts_with("grad.")) {
      ++gradients;
      REQUIRE(reference.find(name) != nullptr);
      CHECK(reference.find(name)->shape == entry.shape);
    }
    if (name.starts_with("activation.")) {
      ++activations;
      CHECK(name.starts_with("activation.layers.1."));
    }
  }
  CHECK(gradients == 28);
  CHECK(activations == 6);  // two norms, four products
  CHECK(out.at("activation.layers.1.mlp.up").shape == Dims{2, 12, 64});

  const auto refused = [&](const Json& json) {
    write_json(options.tokens, json);
    const auto outcome = probe(folder, options);
    return outcome ? "no error" : outcome.error().message;
  };
  CHECK(refused(Json::array()).find("not a JSON object with input_ids") != std::string::npos);
  CHECK(refused({{"input_ids", {{1, 37}}}}).find("37 is outside of the vocabulary of 37") !=
        std::string::npos);
  CHECK(refused({{"input_ids", {{1, -100}}}}).find("-100 is outside") != std::string::npos);
  CHECK(refused({{"input_ids", {{1, 2}, {1}}}}).find("rows of different lengths") !=
        std::string::npos);
  CHECK(refused({{"input_ids", {{1, 2}}}}).find("gradients need labels") != std::string::npos);
  CHECK(refused({{"input_ids", {{1, 2}}}, {"labels", {{1, -100}}}}).find("no token has a target") !=
        std::string::npos);
  CHECK(refused({{"input_ids", Json::array({std::vector<int>(41, 1)})}})
            .find("41 tokens, the model is made for 40") != std::string::npos);
  options.activations = "nope*";
  options.out = scratch.path / "nothing.safetensors";
  CHECK(refused({{"input_ids", {{1, 2}}}, {"labels", {{1, 2}}}})
            .find("--activations: \"nope*\" matches no module; give names of modules, like ") !=
        std::string::npos);
  CHECK_FALSE(fs::exists(options.out));

  // A full disk leaves nothing of the file; a file that was there stays as it is.
  options.activations.clear();
  REQUIRE(file_ops::set_fault("checkpoint:2:enospc"));
  const Json good = {{"input_ids", {{1, 2}}}, {"labels", {{1, 2}}}};
  CHECK(refused(good).find("No space left") != std::string::npos);
  REQUIRE(file_ops::set_fault(""));
  CHECK_FALSE(fs::exists(options.out));
  sortie::test::write_text(options.out, "mine");
  CHECK(refused(good).find("File exists") != std::string::npos);
  CHECK(sortie::test::read_text(options.out) == "mine");
}

TEST_CASE("a damaged tokenizer is an error of the import, one of an unknown kind a warning") {
  const Scratch scratch;
  const fs::path folder = copy_of(scratch, "llama-a"), out = scratch.path / "out";
  const std::string whole = read_file(SORTIE_TEST_DATA "/tokenizer/llama3.json").value();
  const auto write = [&](const char* name, std::string_view text) {
    fs::remove(folder / "tokenizer.json");
    fs::remove(folder / "tokenizer.model");
    REQUIRE(write_file_atomic(folder / name, text));
  };
  for (const auto& [name, text] : {std::pair("tokenizer.json", std::string()),
                                   {"tokenizer.json", whole.substr(0, whole.size() / 2)},
                                   {"tokenizer.json", R"({"a": 1})"},
                                   {"tokenizer.model", std::string("\x0a\x05no")}}) {
    CAPTURE(name);
    CAPTURE(text.size());
    write(name, text);
    const auto refused = import_hf(folder, out);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ErrorCode::data);
    CHECK(refused.error().message.find((folder / name).string()) != std::string::npos);
    CHECK(refused.error().message.ends_with("; or move the file away to import the weights alone"));
    CHECK_FALSE(fs::exists(out));
  }
  Json json = Json::parse(whole);
  json["model"]["type"] = "WordPiece";
  for (const auto& [text, said] :
       {std::pair(json.dump(), "the weights are imported without it"),
        {whole, "is it the tokenizer of this model?"}}) {  // llama-a has a smaller vocabulary
    const sortie::test::CapturedStderr stderr_text;
    write("tokenizer.json", text);
    const auto imported = import_hf(folder, out);
    REQUIRE_MESSAGE(imported, (imported ? "" : imported.error().message));
    CHECK(stderr_text.text().find(said) != std::string::npos);
    fs::remove_all(out);
  }
  fs::remove(folder / "tokenizer.json");
  const sortie::test::CapturedStderr stderr_text;
  CHECK(import_hf(folder, out));
  CHECK(stderr_text.text().empty());
  const auto missing = import_hf(scratch.path / "nowhere", out);
  REQUIRE_FALSE(missing);
  CHECK(missing.error().message.ends_with(
      "nowhere: no such file or folder; name a Hugging Face model folder, or a file of llm.c"));
}

}  // namespace sortie::trainer
