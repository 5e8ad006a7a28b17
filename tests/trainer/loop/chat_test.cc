// Tests of conversations: which parts are trained on, with which tokenizers, and what an export
// records about them.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "common/base/atomic_file.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text.h"
#include "tests/support/tiny_training.h"
#include "trainer/checkpoint/find.h"
#include "trainer/hf/import.h"
#include "trainer/samples/chat_agreement.h"
#include "trainer/samples/chat_source.h"
#include "trainer/state/model_loader.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;
namespace fs = std::filesystem;

namespace {

using Json = nlohmann::json;
using sortie::test::has;

constexpr const char* kQwen = "hf:" SORTIE_TEST_DATA "/tokenizer/qwen2.json";  // has the marks
constexpr const char* kGpt2 = "hf:" SORTIE_TEST_DATA "/tokenizer/gpt2.json";   // splits the marks
constexpr const char* kConversation =
    R"({"messages": [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "bc"}]})";
constexpr const char* kOtherTemplate = "{{ '<|start_header_id|>' + messages[0]['content'] }}";

config::JobConfig chat_job(const std::string& tokenizer) {
  config::JobConfig job = tiny_job();
  job.model.vocab_size = 1504;
  job.model.sequence_length = 64;
  job.data.tokenizer = tokenizer;
  job.data.chat_files = {"chat.jsonl"};
  job.trainer.train_iterations = 2;
  return job;
}

/// Returns the tokenizer of a run on conversations in ChatML, as the start of training finds it.
RunTokenizer chat_tokenizer(const config::JobConfig& job) {
  RunTokenizer run = find_run_tokenizer(job).value();
  run.chatml = run.files->form.chatml = true;
  return run;
}

/// Returns a Hugging Face folder of a tiny model with that tokenizer, a template that is not
/// ChatML, and token 1500 as the end of a text.
fs::path folder_of_model(const sortie::test::ScopedTempDir& dir, const std::string& tokenizer) {
  config::JobConfig job = chat_job("");
  job.data = {};
  job.trainer.save_dir = dir.str("first");
  const auto communicator = make_single_communicator();
  REQUIRE(TinyTraining(job, *communicator).trainer->run());
  fs::path folder = dir / "model";
  REQUIRE(export_hf(dir / "first", folder, {}));
  fs::copy_file(tokenizer.substr(3), folder / "tokenizer.json");
  const auto write = [&](const char* name, const Json& json) {
    REQUIRE(write_file_atomic(folder / name, json.dump()));
  };
  write("tokenizer_config.json", {{"chat_template", kOtherTemplate},
                                  {"eos_token", {{"content", "<|endoftext|>"}}},
                                  {"model_max_length", 64}});
  write("chat_template.json", {{"chat_template", kOtherTemplate}});
  write("generation_config.json", {{"eos_token_id", 1500}, {"top_p", 0.9}});
  return folder;
}

/// Trains on one conversation with checkpoints in `dir`/chat. Returns the newest checkpoint.
fs::path train_on_chat(const sortie::test::ScopedTempDir& dir, config::JobConfig job) {
  sortie::test::write_text(dir / "chat.jsonl", kConversation);
  job.trainer.save_dir = dir.str("chat");
  const auto tokenizer = make_tokenizer(job.data.tokenizer).value();
  auto source = ChatSource::open(job, {dir.str("chat.jsonl")}, *tokenizer, true);
  REQUIRE_MESSAGE(source, (source ? "" : source.error().message));
  CHECK((*source)->chatml());
  const auto communicator = make_single_communicator();
  TinyTraining training(job, *communicator, DType::f32, 1, std::move(*source));
  training.trainer->set_tokenizer(chat_tokenizer(job));
  REQUIRE(training.trainer->run());
  return find_latest(dir / "chat")->entry->folder;
}

Json json_in(const fs::path& file) {
  return Json::parse(read_file(file).value());
}

}  // namespace

TEST_CASE("conversations of which nothing can be learned are an error that says why") {
  const sortie::test::ScopedTempDir dir;
  const config::JobConfig job = chat_job("byte");
  const auto error_of = [&](const std::string& line) {
    sortie::test::write_text(dir / "chat.jsonl", line + "\n");
    const auto source =
        ChatSource::open(job, {dir.str("chat.jsonl")}, *make_byte_tokenizer(), true);
    return source ? std::string("none") : source.error().message;
  };
  const std::string where = dir.str("chat.jsonl") + ": no conversation has ";
  CHECK(error_of(R"({"messages":[{"role":"user","content":"a"}]})") ==
        where + "a message of the assistant, and only these are learned");
  const std::string late =
      error_of(R"({"messages":[{"role":"user","content":")" +
               std::string(static_cast<std::size_t>(job.model.sequence_length), 'a') +
               R"("},{"role":"assistant","content":"b"}]})");
  CHECK(late.starts_with(where + "an answer in its first "));
}

TEST_CASE("reading conversations reports the bytes of all files") {
  const sortie::test::ScopedTempDir dir;
  std::string many;
  for (int i = 0; i < 3000; ++i) many += std::string(kConversation) + "\n";
  sortie::test::write_text(dir / "many.jsonl", many);
  sortie::test::write_text(dir / "one.jsonl", kConversation);
  const std::uint64_t bytes = many.size() + std::string_view(kConversation).size();
  std::vector<std::uint64_t> reports;
  const auto source = ChatSource::open(
      chat_job("byte"), {dir.str("many.jsonl"), dir.str("one.jsonl")}, *make_byte_tokenizer(),
      /*shuffle=*/true, /*threads=*/2, [&](const WorkProgress& work) {
        CHECK(work.total == bytes);
        reports.push_back(work.done);
      });
  REQUIRE_MESSAGE(source, (source ? "" : source.error().message));
  CHECK(reports.size() > 3);
  CHECK(std::ranges::is_sorted(reports));
  CHECK(reports.back() == bytes);
}

TEST_CASE("the fingerprint of conversations depends on the tokenizer's content, not its path") {
  const sortie::test::ScopedTempDir dir;
  sortie::test::write_text(dir / "chat.jsonl", kConversation);
  for (const char* home : {"a", "b"}) {
    fs::create_directories(dir / home);
    fs::copy_file(std::string(kQwen).substr(3), dir / home / "tokenizer.json");
  }
  const auto fingerprint = [&](const std::string& tokenizer) {
    return ChatSource::open(chat_job(tokenizer), {dir.str("chat.jsonl")},
                            *make_tokenizer(tokenizer).value(), /*shuffle=*/true)
        .value()
        ->fingerprint();
  };
  const std::string first = fingerprint("hf:" + dir.str("a/tokenizer.json"));
  CHECK(fingerprint("hf:" + dir.str("b/tokenizer.json")) == first);
  CHECK(fingerprint(kGpt2) != first);
  CHECK(fingerprint("byte") != first);
}

TEST_CASE("keys that would change what is trained are errors that name file, line and key") {
  const sortie::test::ScopedTempDir dir;
  const auto tokenizer = make_byte_tokenizer();
  config::JobConfig job = chat_job("byte");
  const auto error_of_line = [&](const Json& line) -> std::string {
    sortie::test::write_text(dir / "chat.jsonl", std::string(kConversation) + "\n" + line.dump());
    const auto source = ChatSource::open(job, {dir.str("chat.jsonl")}, *tokenizer, false);
    if (!source) CHECK(source.error().code == ErrorCode::data);
    return source ? "none" : source.error().message;
  };
  const Json plain = Json::parse(kConversation);
  const Json calls = Json::array({{{"id", "1"}, {"type", "function"}}});
  const std::pair<const char*, Json> keys[] = {
      {"tool_calls", calls}, {"function_call", {{"name", "f"}}},
      {"weight", 0},         {"weight", 1},
      {"weight", 0.5},       {"train", false},
      {"train", true},       {"tools", calls},
      {"functions", calls}};
  for (const auto& [key, value] : keys) {
    CAPTURE(key);
    Json line = plain;
    line["messages"][1][key] = value;
    const std::string at = dir.str("chat.jsonl:2: ");
    CHECK(error_of_line(line).starts_with(at + "message 2: \"" + key + "\" is not supported: "));
    line = plain;
    line[key] = value;
    CHECK(error_of_line(line).starts_with(at + "\"" + key + "\" is not supported: "));
    CHECK(error_of_line({{"prompt", "a"}, {"completion", "b"}, {key, value}})
              .starts_with(at + "\"" + key + "\" is not supported: "));
    // Files that were written from tables have every column in every line, empty ones too.
    for (const Json& empty : {Json(), Json::array(), Json::object()}) {
      line = plain;
      line["messages"][0][key] = line[key] = empty;
      CHECK(error_of_line(line) == "none");
    }
  }
  Json other = plain;
  other["source"] = "school";
  other["messages"][0]["name"] = "Ada";
  CHECK(error_of_line(other) == "none");
}

TEST_CASE("what is cut of conversations is counted") {
  const sortie::test::ScopedTempDir dir;
  config::JobConfig job = chat_job("byte");
  job.model.vocab_size = 257;
  job.model.sequence_length = 10;
  const auto count_of = [&](const std::string& lines) {
    sortie::test::write_text(dir / "chat.jsonl", lines);
    const auto tokenizer = make_byte_tokenizer();
    const auto source = ChatSource::open(job, {dir.str("chat.jsonl")}, *tokenizer, false);
    REQUIRE_MESSAGE(source, (source ? "" : source.error().message));
    return (*source)->count();
  };
  const auto line = [](std::size_t prompt, std::size_t completion) {
    return Json{{"prompt", std::string(prompt, 'p')}, {"completion", std::string(completion, 'c')}}
               .dump() +
           "\n";
  };
  // 11 tokens, the last of which is the end of the document, give 10 targets.
  const ChatSource::Count whole = count_of(line(4, 6));
  CHECK(whole.conversations == 1);
  CHECK(whole.answer_tokens == 7);
  CHECK(whole.cut == 0);
  CHECK(whole.lost_tokens == 0);
  const ChatSource::Count some = count_of(line(4, 6) + line(4, 9) + line(11, 5) + line(20, 1));
  CHECK(some.conversations == 4);
  CHECK(some.left_out == 2);
  CHECK(some.cut == 1);
  CHECK(some.answer_tokens == 7 + 10 + 6 + 2);
  CHECK(some.lost_tokens == 3 + 6 + 2);
}

TEST_CASE("marks that the tokenizer splits are an error for an imported model, else a warning") {
  const sortie::test::ScopedTempDir dir;
  const auto notes_of = [](const std::string& tokenizer, const fs::path& start) {
    const auto notes = check_chatml(chat_tokenizer(chat_job(tokenizer)), start);
    REQUIRE_MESSAGE(notes, (notes ? "" : notes.error().message));
    return *notes;
  };
  CHECK(notes_of(kQwen, "").empty());
  for (const char* tokenizer : {"byte", kGpt2}) {
    const std::vector<std::string> notes = notes_of(tokenizer, "");
    REQUIRE(notes.size() == 1);
    CHECK(has(notes[0], "data.tokenizer: "));
    CHECK(has(notes[0], tokenizer));
    CHECK(has(notes[0], "does not have <|im_start|> and <|im_end|> as single tokens"));
    CHECK(has(notes[0],
              "--type bpe --special-token '<|endoftext|>' --special-token '<|im_start|>' "
              "--special-token '<|im_end|>'"));
    // Lines of a prompt and a completion contain no marks.
    RunTokenizer run = chat_tokenizer(chat_job(tokenizer));
    run.chatml = false;
    CHECK(check_chatml(run, "")->empty());
  }

  const fs::path folder = folder_of_model(dir, kGpt2);
  REQUIRE(import_hf(folder, dir / "imported"));
  config::JobConfig job = chat_job("hf:" + (folder / "tokenizer.json").string());
  job.trainer.load_weights_from = dir.str("imported");
  const auto started = start_trainer(job, chat_tokenizer(job));
  REQUIRE_FALSE(started);
  CHECK(started.error().code == ErrorCode::data);
  CHECK(has(started.error().message, "the imported model in " + dir.str("imported")));
  CHECK(has(started.error().message, "\"prompt\" and \"completion\""));
  RunTokenizer without = chat_tokenizer(job);
  without.chatml = false;
  CHECK(start_trainer(job, without).has_value());
}

TEST_CASE("a chat template that is not ChatML is a warning, and the export of the run has ChatML") {
  const sortie::test::ScopedTempDir dir;
  const fs::path folder = folder_of_model(dir, kQwen);
  REQUIRE(import_hf(folder, dir / "imported"));
  config::JobConfig job = chat_job("hf:" + (folder / "tokenizer.json").string());
  const fs::path imported = find_latest(dir / "imported")->entry->folder;
  // The template is read from the folder of the tokenizer or, if that has none, from the
  // checkpoint.
  const auto by_folder = check_chatml(chat_tokenizer(job), imported).value();
  REQUIRE(by_folder.size() == 1);
  CHECK(has(by_folder[0], "the chat template in the folder of hf:" + folder.string()));
  fs::create_directories(dir / "alone");
  fs::copy_file(folder / "tokenizer.json", dir / "alone" / "tokenizer.json");
  config::JobConfig alone = job;
  alone.data.tokenizer = "hf:" + dir.str("alone/tokenizer.json");
  const auto by_start = check_chatml(chat_tokenizer(alone), imported).value();
  REQUIRE(by_start.size() == 1);
  CHECK(has(by_start[0], "the chat template in " + (imported / "huggingface").string()));
  CHECK(is_chatml(chatml_template()));

  for (const config::JobConfig& start : {job, alone}) {
    fs::remove_all(dir / "chat");
    fs::remove_all(dir / "out");
    config::JobConfig from = start;
    from.trainer.load_weights_from = dir.str("imported");
    const fs::path trained = train_on_chat(dir, from);
    const auto exported = export_hf(trained, dir / "out", {});
    REQUIRE_MESSAGE(exported, (exported ? "" : exported.error().message));
    CHECK(read_file(dir / "out" / "chat_template.jinja").value() == chatml_template());
    CHECK_FALSE(fs::exists(dir / "out" / "chat_template.json"));
    const Json about = json_in(dir / "out" / "tokenizer_config.json");
    CHECK(about["chat_template"] == chatml_template());
    CHECK(about["eos_token"] == "<|im_end|>");
    CHECK(about["model_max_length"] == 64);
    CHECK(json_in(dir / "out" / "special_tokens_map.json")["eos_token"] == "<|im_end|>");
    CHECK(json_in(dir / "out" / "config.json")["eos_token_id"] == 1502);
    const Json generation = json_in(dir / "out" / "generation_config.json");
    CHECK(generation["eos_token_id"] == Json::array({1502, 1500}));
    CHECK(generation["top_p"] == 0.9);
    // generate stops at these tokens, with the checkpoint and with its export.
    REQUIRE(import_hf(dir / "out", dir / "again"));
    for (const fs::path& place : {trained, dir / "again"}) {
      const auto model = load_model(place, 1, "f32").value();
      CHECK(model->stop_tokens(*model->tokenizer().value()).value() ==
            std::vector<std::int32_t>{1502, 1500});
    }
    fs::remove_all(dir / "again");
  }
  // The export of a model that was not trained on conversations keeps its template.
  REQUIRE(export_hf(dir / "imported", dir / "plain", {}));
  CHECK(json_in(dir / "plain" / "tokenizer_config.json")["chat_template"] == kOtherTemplate);
  CHECK(json_in(dir / "plain" / "generation_config.json")["eos_token_id"] == 1500);
}

TEST_CASE("a model of conversations that was trained here is exported with ChatML") {
  for (const char* tokenizer : {kQwen, "byte"}) {
    CAPTURE(tokenizer);
    const sortie::test::ScopedTempDir dir;
    const fs::path trained = train_on_chat(dir, chat_job(tokenizer));
    const auto exported = export_hf(trained, dir / "out", {});
    REQUIRE_MESSAGE(exported, (exported ? "" : exported.error().message));
    CHECK(read_file(dir / "out" / "chat_template.jinja").value() == chatml_template());
    const bool marks = std::string_view(tokenizer) == kQwen;
    const Json ends = json_in(dir / "out" / "generation_config.json")["eos_token_id"];
    CHECK(ends == (marks ? Json::array({1502, 1500}) : Json(256)));
    CHECK(json_in(dir / "out" / "tokenizer_config.json")["eos_token"] ==
          (marks ? "<|im_end|>" : "<|endoftext|>"));
  }
}
