// Tests of freezing, parameter groups, low-rank updates, and conversations.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "tests/support/temp_dir.h"
#include "tests/support/tiny_training.h"
#include "trainer/nn/lora.h"
#include "trainer/samples/chat_source.h"
#include "trainer/state/merge.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;

namespace {

std::map<std::string, std::vector<float>> weights_of(ParameterStore& store) {
  std::map<std::string, std::vector<float>> all;
  for (const auto& parameter : store.parameters()) {
    all[parameter->name()] =
        host_values(store, store.master().slice(0, parameter->offset(), parameter->elements()));
  }
  return all;
}

}  // namespace

TEST_CASE("frozen parameters keep every bit, the others are trained") {
  config::JobConfig job = tiny_job();
  job.optimizer.freeze = {"embedding.*", "layers.0.*"};
  const auto communicator = make_single_communicator();
  TinyTraining training(job, *communicator);
  const auto before = weights_of(training.trainer->store());
  const auto losses = training.losses(10);
  CHECK(losses.back() < losses.front());
  for (const auto& [name, values] : weights_of(training.trainer->store())) {
    CAPTURE(name);
    const bool frozen = name.starts_with("embedding.") || name.starts_with("layers.0.");
    CHECK((values == before.at(name)) == frozen);
  }
}

TEST_CASE("a group has its own rate and decay, and resumes with its bits") {
  config::JobConfig job = tiny_job("gpt-neo-x");
  job.optimizer.weight_decay = 0;
  job.optimizer.gradient_clipping = 0;
  const auto first_step = [&](const std::vector<std::string>& groups) {
    job.optimizer.training_groups = groups;
    const auto communicator = make_single_communicator();
    TinyTraining training(job, *communicator);
    auto before = weights_of(training.trainer->store());
    training.losses(1);
    auto after = weights_of(training.trainer->store());
    std::map<std::string, std::vector<float>> moved;
    for (auto& [name, values] : after) {
      std::vector<float>& change = moved[name];
      for (std::size_t i = 0; i < values.size(); ++i)
        change.push_back(values[i] - before.at(name)[i]);
    }
    return moved;
  };
  const auto plain = first_step({});
  const auto grouped =
      first_step({"slow include=layers.1.* exclude=*.bias learning_rate=1e-3 "
                  "learning_rate_decay_style=constant",
                  "still include=final_norm.* learning_rate=1e-20"});
  for (const auto& [name, change] : plain) {
    CAPTURE(name);
    const bool slow = name.starts_with("layers.1.") && !name.ends_with(".bias");
    // By step 1, the cosine schedule has decreased 1e-2 slightly; the constant one still has 1e-3.
    const double rate = 0.5 * 1e-2 * (1 + std::cos(M_PI / 20));
    const double factor = slow ? 1e-3 / rate : name.starts_with("final_norm.") ? 0.0 : 1.0;
    double largest = 0;
    for (std::size_t i = 0; i < change.size(); ++i)
      largest = std::max(largest, std::abs(grouped.at(name)[i] - factor * change[i]));
    CHECK(largest <= 2e-6);
  }
  // Only the decay differs: the gradients of the first step are the same.
  const auto decayed = first_step({"heavy include=layers.0.mlp.up.weight weight_decay=10"});
  CHECK(decayed.at("layers.0.mlp.up.weight") != plain.at("layers.0.mlp.up.weight"));
  CHECK(decayed.at("layers.0.mlp.down.weight") == plain.at("layers.0.mlp.down.weight"));
}

TEST_CASE("patterns that match nothing, and parameters in two groups, are refused at the start") {
  config::JobConfig job = tiny_job();
  job.optimizer.freeze = {"layer.*"};
  CHECK(start_error(job).starts_with("optimizer.freeze: \"layer.*\" matches nothing; names are "));
  job.optimizer.freeze = {"*"};
  CHECK(start_error(job).find("every parameter is frozen") != std::string::npos);
  job.optimizer.freeze.clear();
  job.optimizer.training_groups = {"a include=nothing.*"};
  CHECK(start_error(job).find("group a: \"nothing.*\" matches no parameter") != std::string::npos);
  job.optimizer.training_groups = {"a include=*norm*", "b include=final_norm.*"};
  CHECK(start_error(job).find("group b: final_norm.weight is in group a too") != std::string::npos);
  job.optimizer.training_groups = {"a include=layers.0.* exclude=*"};
  CHECK(start_error(job).find("group a: it has no parameter, because exclude takes all") !=
        std::string::npos);
  job.optimizer.freeze = {"layers.0.*"};
  job.optimizer.training_groups = {"a include=layers.0.*"};
  CHECK(start_error(job).find("group a: none of its parameters is trained, because "
                              "optimizer.freeze has them all") != std::string::npos);
  job.optimizer.training_groups = {"a include=layers.*"};
  CHECK(start_error(job) == "none");
  job.optimizer.freeze.clear();
  job.optimizer.training_groups.clear();
  job.lora.rank = 4;
  const std::string frozen = "optimizer.training_groups: group a: all its parameters are frozen, ";
  job.optimizer.training_groups = {"a include=*.attention.qkv.weight,embedding.*"};
  CHECK(start_error(job).starts_with(frozen + "because lora.rank trains only the updates; name "
                                              "these, as include=*.lora_down,*.lora_up"));
  job.optimizer.training_groups = {"a include=*.lora_up"};
  CHECK(start_error(job) == "none");
  job.optimizer.training_groups.clear();
  job.lora.modules.clear();
  CHECK(start_error(job).starts_with("lora.modules: it is empty, "));
  job.lora.modules = {"*.attention.qqq"};
  CHECK(start_error(job).starts_with("lora.modules: \"*.attention.qqq\" matches nothing; names "));
}

TEST_CASE("low-rank updates train alone, resume bit for bit, and merge into plain weights") {
  const sortie::test::ScopedTempDir dir;
  const auto communicator = make_single_communicator();
  config::JobConfig base = tiny_job();
  base.trainer.save_dir = dir.str("base");
  base.trainer.train_iterations = 15;
  TinyTraining pretraining(base, *communicator);
  REQUIRE(pretraining.trainer->run());

  config::JobConfig job = base;
  job.trainer.save_dir = dir.str("lora");
  job.trainer.load_weights_from = dir.str("base");
  job.trainer.train_iterations = 12;
  job.learning_rate_scheduler.learning_rate_decay_iters = 24;
  job.lora.rank = 4;
  job.lora.alpha = 8;
  job.lora.modules = {"*.attention.*", "layers.1.mlp.down"};
  config::JobConfig unsaved = job;
  unsaved.trainer.save_dir.clear();
  TinyTraining whole(unsaved, *communicator);
  ParameterStore& store = whole.trainer->store();
  const auto before = weights_of(store);
  CHECK(before.at("layers.0.attention.qkv.lora_up") ==
        std::vector<float>(before.at("layers.0.attention.qkv.lora_up").size(), 0.0f));
  CHECK(before.at("layers.0.attention.qkv.weight") ==
        weights_of(pretraining.trainer->store()).at("layers.0.attention.qkv.weight"));
  const auto losses = whole.losses(24);
  CHECK(losses.back() < losses.front());
  for (const auto& [name, values] : weights_of(store)) {
    CAPTURE(name);
    CHECK((values != before.at(name)) == is_lora_name(name));
  }

  {
    TinyTraining half(job, *communicator);
    REQUIRE(half.trainer->run());
  }
  TinyTraining rest(job, *communicator);
  REQUIRE(rest.trainer->progress().step == 12);
  CHECK(rest.losses(12) == std::vector<double>(losses.begin() + 12, losses.end()));

  const auto tuned = load_model(dir.str("lora"), 1, "f32", device());
  REQUIRE(tuned);
  const auto score = [&](LoadedModel& loaded) {
    std::vector<std::int32_t> ids;
    for (std::int32_t i = 0; i < 19; ++i) ids.push_back(i * 3 % 50);
    const Tensor tokens = ops::tensor_from_host<std::int32_t>(loaded.context, ids, {1, 19});
    Graph graph(loaded.context, Graph::Mode::inference);
    const Tensor logits = loaded.model->last_logits(graph, tokens);
    return ops::copy_to_host<float>(loaded.context, logits.view({logits.elements()}));
  };
  const std::vector<float> expected = score(**tuned);
  pretraining.trainer.reset();  // and with them the locks of their folders
  rest.trainer.reset();
  // In the folder of a run, the merged checkpoint would replace one of the run's, or be taken for
  // the newest.
  for (const char* run : {"lora", "base"}) {
    CAPTURE(run);
    const auto refused = write_merged(**tuned, dir / run);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ErrorCode::usage);
    CHECK(refused.error().message.starts_with(dir.str(run) + ": there is a checkpoint in it, "));
  }
  TinyTraining goes_on(job, *communicator);
  CHECK(goes_on.trainer->progress().step == 12);
  REQUIRE(write_merged(**tuned, dir / "merged"));
  std::vector<WorkProgress> reported;
  const auto merged =
      load_model(dir.str("merged"), 1, "f32", device(),
                 [&](const WorkProgress& progress) { reported.push_back(progress); });
  REQUIRE(merged);
  CHECK(reported.front().stage == "checking the checkpoint");
  std::erase_if(reported,
                [](const WorkProgress& each) { return each.stage != "loading checkpoint"; });
  // The first report has the total size of the weights, and the last one reaches it.
  REQUIRE(reported.size() > 2);
  CHECK(reported.front().done == 0);
  CHECK(reported.back().done == reported.back().total);
  std::uint64_t bytes = 0;  // the padding of the vocabulary included
  for (const auto& parameter : (*merged)->store.parameters())
    bytes += 4 * static_cast<std::uint64_t>(parameter->elements());
  CHECK(reported.front().total == bytes);
  CHECK((*merged)->store.find("layers.0.attention.qkv.lora_up") == nullptr);
  const std::vector<float> got = score(**merged);
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    REQUIRE(got[i] == doctest::Approx(expected[i]).epsilon(1e-4));
  const auto again = write_merged(**merged, dir / "twice");
  REQUIRE_FALSE(again);
  CHECK(again.error().message.find("no low-rank updates") != std::string::npos);
}

TEST_CASE("of a conversation the answers count, and the mark that ends them") {
  const sortie::test::ScopedTempDir dir;
  sortie::test::write_text(
      dir / "chat.jsonl",
      "{\"messages\": [{\"role\": \"user\", \"content\": \"a?\"}, {\"role\": \"assistant\", "
      "\"content\": \"bc\"}, {\"role\": \"user\", \"content\": \"d?\"}, {\"role\": "
      "\"assistant\", \"content\": \"e\"}]}\n"
      "{\"prompt\": \"2+2=\", \"completion\": \"4\", \"source\": \"school\"}\n"
      "{\"prompt\": \"" +
          std::string(400, 'x') + "\", \"completion\": \"too far\"}\n");
  config::JobConfig job = tiny_job();
  job.data.pack_conversations = false;
  job.model.vocab_size = 257;
  job.model.sequence_length = 160;
  const auto tokenizer = make_byte_tokenizer();
  const auto source = ChatSource::open(job, {dir.str("chat.jsonl")}, *tokenizer, false);
  REQUIRE_MESSAGE(source, (source ? "" : source.error().message));
  CHECK((*source)->samples_per_epoch() == 2);
  CHECK((*source)->count().left_out == 1);
  std::vector<std::int32_t> tokens(160), targets(160);
  const auto texts = [&](std::int64_t index) {
    REQUIRE((*source)->sample(index, tokens, targets));
    std::string input, counted;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] != 0) input += tokens[i] == 256 ? '$' : static_cast<char>(tokens[i]);
      if (targets[i] >= 0) counted += targets[i] == 256 ? '$' : static_cast<char>(targets[i]);
      if (targets[i] >= 0 && i + 1 < tokens.size()) CHECK((tokens[i + 1] == targets[i]));
    }
    return std::pair(input, counted);
  };
  CHECK(texts(0) == std::pair<std::string, std::string>(
                        "<|im_start|>user\na?<|im_end|>\n<|im_start|>assistant\nbc<|im_end|>\n"
                        "<|im_start|>user\nd?<|im_end|>\n<|im_start|>assistant\ne<|im_end|>\n",
                        "bc<|im_end|>e<|im_end|>"));
  CHECK(texts(1) == std::pair<std::string, std::string>("2+2=4$", "4$"));
  CHECK(texts(2).first == texts(0).first);  // the next epoch
}

TEST_CASE("a bad conversation is named with its line, and each epoch has its own order") {
  const sortie::test::ScopedTempDir dir;
  config::JobConfig job = tiny_job();
  job.data.pack_conversations = false;
  job.model.vocab_size = 257;
  const auto tokenizer = make_byte_tokenizer();
  for (const char* line : {"{\"messages\": [{\"role\": \"user\"}]}", "{\"prompt\": \"a\"}", "[1]",
                           "{\"messages\": 3", "{\"prompt\": \"a\", \"completion\": 7}"}) {
    CAPTURE(line);
    sortie::test::write_text(dir / "bad.jsonl", std::string("\n\n") + line);
    const auto source = ChatSource::open(job, {dir.str("bad.jsonl")}, *tokenizer, true);
    REQUIRE_FALSE(source);
    CHECK(source.error().code == ErrorCode::data);
    CHECK(source.error().message.starts_with(dir.str("bad.jsonl:3: ")));
  }
  const auto error_of = [&](const std::string& content) {
    sortie::test::write_text(dir / "bad.jsonl", content);
    const auto source = ChatSource::open(job, {dir.str("bad.jsonl")}, *tokenizer, true);
    return source ? "none" : source.error().message;
  };
  const auto message = [](const std::string& role, const std::string& content) {
    return "{\"messages\": [{\"role\": " + role + ", \"content\": " + content + "}]}";
  };
  const std::string at = dir.str("bad.jsonl:1: ");
  // Messages are ours, not those of the JSON library. A mistyped role would train on nothing.
  CHECK(error_of(message("\"asistant\"", "\"x\""))
            .starts_with(at + "role \"asistant\" is unknown; use one of system, developer, user, "
                              "assistant, tool; write "));
  CHECK(
      error_of(message("\"user\"", "null")).starts_with(at + "\"content\" is null, not a string"));
  CHECK(error_of(message("3", "\"x\"")).starts_with(at + "\"role\" is a number, not a string; "));
  CHECK(error_of("{\"messages\": []}").starts_with(at + "\"messages\" is empty; "));
  CHECK(error_of("{\"messages\": [7]}").starts_with(at + "a message is a number, not an object; "));
  CHECK(error_of("{\"text\": \"x\"}").starts_with(at + "no \"prompt\"; "));
  CHECK(error_of("{").starts_with(at + "not JSON; "));
  for (const char* empty : {"", "\n \n"})
    CHECK(error_of(empty).starts_with(dir.str("bad.jsonl: no conversation in it; ")));

  std::string lines;
  for (char c = 'a'; c <= 'z'; ++c)
    lines += std::string("{\"prompt\": \"") + c + "\", \"completion\": \"x\"}\n";
  sortie::test::write_text(dir / "good.jsonl", lines);
  const auto source = ChatSource::open(job, {dir.str("good.jsonl")}, *tokenizer, true);
  REQUIRE(source);
  std::vector<std::int32_t> tokens(19), targets(19);
  const auto epoch = [&](std::int64_t number) {
    std::string order;
    for (std::int64_t i = 0; i < 26; ++i) {
      REQUIRE((*source)->sample(number * 26 + i, tokens, targets));
      order += static_cast<char>(tokens[0]);
    }
    return order;
  };
  std::string first = epoch(0), second = epoch(1);
  CHECK(first != second);
  CHECK(first == epoch(0));
  std::ranges::sort(first);
  std::ranges::sort(second);
  CHECK(first == "abcdefghijklmnopqrstuvwxyz");
  CHECK(second == first);
}
