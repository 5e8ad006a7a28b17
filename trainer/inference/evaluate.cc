#include "trainer/inference/evaluate.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numbers>

#include "trainer/inference/batch_loss.h"
#include "trainer/ops/copy.h"
#include "trainer/ops/targets.h"
#include "trainer/samples/json_member.h"

namespace sortie::trainer {
namespace {

struct Item {
  std::string context;
  std::vector<std::string> choices;
  std::size_t answer = 0;
};

Result<Item> parse_item(const std::string& line, const std::string& where) {
  const auto read = [&]() -> Result<Item> {
    Item item;
    SORTIE_ASSIGN_OR_RETURN(const nlohmann::json value, parse_json_object(line));
    SORTIE_ASSIGN_OR_RETURN(const auto* context, json_member(value, "context", JsonKind::text));
    item.context = context->get<std::string>();
    SORTIE_ASSIGN_OR_RETURN(const auto* choices, json_member(value, "choices", JsonKind::list));
    for (const nlohmann::json& choice : *choices) {
      SORTIE_TRY(check_json_kind(choice, "a choice", JsonKind::text));
      item.choices.push_back(choice.get<std::string>());
    }
    SORTIE_ASSIGN_OR_RETURN(const auto* answer,
                            json_member(value, "answer", JsonKind::whole_number));
    const auto number = answer->get<std::int64_t>();
    if (number < 0 || number >= static_cast<std::int64_t>(item.choices.size()))
      return fail(ErrorCode::data, fmt::format("answer {} of {} choices; count from 0", number,
                                               item.choices.size()));
    item.answer = static_cast<std::size_t>(number);
    return item;
  };
  auto item = read();
  if (item) return item;
  return fail(ErrorCode::data, fmt::format("{}: {}; write {{\"context\": \"...\", \"choices\": "
                                           "[\"...\"], \"answer\": 0}}",
                                           where, item.error().message));
}

/// Returns the log-probability of `choice` after the tokens `begin_tokens` and the text `before`.
Result<double> log_probability(ExecutionContext& context, const LanguageModel& model,
                               const Tokenizer& tokenizer,
                               const std::vector<std::int32_t>& begin_tokens,
                               const std::string& before, const std::string& choice,
                               const std::string& where) {
  std::vector<std::int32_t> head = begin_tokens, all = head;
  SORTIE_TRY(tokenizer.encode(before, head));
  SORTIE_TRY(tokenizer.encode(before + choice, all));
  // A token may span the end of the context and the beginning of the choice. It counts as the
  // choice's.
  std::size_t begin = 0;
  while (begin < head.size() && begin < all.size() && head[begin] == all[begin]) ++begin;
  if (begin == 0 || begin == all.size())
    return fail(ErrorCode::data, fmt::format("{}: {}", where,
                                             begin == 0 ? "the context is empty; start it with a "
                                                          "line break at least"
                                                        : "a choice is empty; remove it"));
  for (const std::int32_t id : all)
    if (id >= model.shape().vocab_size)
      return fail(ErrorCode::data,
                  fmt::format("{}: token {} is outside of the model's vocabulary of {}", where, id,
                              model.shape().vocab_size));
  const auto window = static_cast<std::size_t>(model.shape().sequence_length);
  const std::size_t dropped = all.size() - 1 > window ? all.size() - 1 - window : 0;
  const std::size_t length = all.size() - 1 - dropped;
  std::vector<std::int32_t> tokens(length), targets(length);
  for (std::size_t i = 0; i < length; ++i) {
    const std::size_t next = i + dropped + 1;
    tokens[i] = all[i + dropped];
    targets[i] = next >= begin ? all[next] : ops::kNoTarget;
  }
  ForwardContext forward;
  Graph graph(context, Graph::Mode::inference);
  const Shape shape{1, static_cast<std::int64_t>(length)};
  const Tensor loss =
      model.loss(graph, ops::tensor_from_host<std::int32_t>(context, tokens, shape),
                 ops::tensor_from_host<std::int32_t>(context, targets, shape), 0.0f, forward);
  return -ops::read_cross_entropy(context, loss).loss_sum;
}

}  // namespace

double TextScore::perplexity() const {
  return std::exp(loss());
}

double TextScore::bits_per_byte() const {
  return nats / std::numbers::ln2 / static_cast<double>(bytes);
}

Result<TextScore> score_text(ExecutionContext& context, const LanguageModel& model,
                             const Tokenizer& tokenizer, SampleSource& source, std::int64_t samples,
                             std::int64_t batch, const OnProgress& progress, bool graphs) {
  const std::int64_t length = model.shape().sequence_length;
  const auto width = static_cast<std::size_t>(length);
  TextScore score;
  BatchLoss losses(graphs);
  for (std::int64_t first = 0; first < samples; first += batch) {
    const std::int64_t rows = std::min(batch, samples - first);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(rows) * width);
    std::vector<std::int32_t> targets(tokens.size());
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::size_t begin = static_cast<std::size_t>(row) * width;
      const auto target = std::span(targets).subspan(begin, width);
      SORTIE_TRY(source.sample(first + row, std::span(tokens).subspan(begin, width), target));
      std::vector<std::int32_t> counted;
      std::ranges::copy_if(target, std::back_inserter(counted),
                           [](std::int32_t id) { return id >= 0; });
      score.bytes += static_cast<std::int64_t>(tokenizer.decode(counted).size());
    }
    Tensor sums = context.zeros(DType::f64, {2});
    losses.add(
        context, tokens, targets, {rows, length},
        [&](const Tensor& some, const Tensor& wanted, Tensor& to) {
          ForwardContext forward;
          if (source.packed()) forward.packed_targets = wanted;
          Graph graph(context, Graph::Mode::inference);
          model.loss(graph, some, wanted, 0.0f, forward, to);
        },
        sums);
    const auto loss = ops::read_cross_entropy(context, sums);
    score.nats += loss.loss_sum;
    score.tokens += loss.count;
    if (progress)
      progress({"scoring text", static_cast<std::uint64_t>(first + rows),
                static_cast<std::uint64_t>(samples), "samples"});
  }
  score.graph_failure = losses.take_failure();
  return score;
}

Result<ChoiceScore> score_choices(ExecutionContext& context, const LanguageModel& model,
                                  const Tokenizer& tokenizer,
                                  const std::vector<std::int32_t>& before,
                                  const std::filesystem::path& file, const OnProgress& progress) {
  std::ifstream in(file);
  if (!in) return std::unexpected(os_error(errno, file.string()));
  std::error_code ignored;
  const std::uintmax_t size = std::filesystem::file_size(file, ignored);
  std::uint64_t read = 0;
  ChoiceScore score;
  std::string line;
  for (std::int64_t number = 1; std::getline(in, line); ++number) {
    read += line.size() + 1;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = fmt::format("{}:{}", file.string(), number);
    SORTIE_ASSIGN_OR_RETURN(const Item item, parse_item(line, where));
    std::size_t best = 0, best_per_byte = 0;
    double most = -INFINITY, most_per_byte = -INFINITY;
    for (std::size_t i = 0; i < item.choices.size(); ++i) {
      SORTIE_ASSIGN_OR_RETURN(
          const double value,
          log_probability(context, model, tokenizer, before, item.context, item.choices[i], where));
      const double per_byte = value / static_cast<double>(item.choices[i].size());
      if (value > most) best = i;
      if (per_byte > most_per_byte) best_per_byte = i;
      most = std::max(most, value);
      most_per_byte = std::max(most_per_byte, per_byte);
    }
    ++score.items;
    if (progress) progress({"scoring choices", read, ignored ? 0 : size});
    score.right += best == item.answer;
    score.right_per_byte += best_per_byte == item.answer;
  }
  if (score.items == 0)
    return fail(ErrorCode::data, fmt::format("{}: no items in it", file.string()));
  return score;
}

}  // namespace sortie::trainer
