#include "trainer/tokenizer/bpe_learner.h"

#include <algorithm>
#include <utility>

namespace sortie::trainer {

PairCounts::Slot& PairCounts::slot_of(std::uint64_t pair) {
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = static_cast<std::size_t>((pair * 0x9e3779b97f4a7c15u) >> 20) & mask;
  while (slots_[at].pair != pair && slots_[at].pair != kEmpty) at = (at + 1) & mask;
  return slots_[at];
}

std::int64_t& PairCounts::operator[](std::uint64_t pair) {
  Slot& slot = slot_of(pair);
  if (slot.pair == pair) return slot.count;
  if (2 * ++used_ <= slots_.size()) {
    slot.pair = pair;
    return slot.count;
  }
  std::vector<Slot> old(2 * slots_.size());
  old.swap(slots_);
  for (const Slot& kept : old)
    if (kept.pair != kEmpty) slot_of(kept.pair) = kept;
  Slot& fresh = slot_of(pair);
  fresh.pair = pair;
  return fresh.count;
}

BpeLearner::BpeLearner(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {
  for (std::size_t i = 0; i < tokens_.size(); ++i)
    ids_.emplace(tokens_[i], static_cast<std::int32_t>(i));
}

void BpeLearner::add_word(const std::vector<std::int32_t>& symbols, std::int64_t count) {
  const auto word = static_cast<std::uint32_t>(words_.size());
  words_.push_back({symbols_.size(), static_cast<std::uint32_t>(symbols.size()), count});
  symbols_.insert(symbols_.end(), symbols.begin(), symbols.end());
  for (std::size_t i = 0; i + 1 < symbols.size(); ++i)
    change(key(symbols[i], symbols[i + 1]), count, word);
}

std::int32_t BpeLearner::token_id(std::string_view token) {
  const auto [at, is_new] =
      ids_.emplace(std::string(token), static_cast<std::int32_t>(tokens_.size()));
  if (is_new) tokens_.emplace_back(token);
  return at->second;
}

void BpeLearner::change(std::uint64_t pair, std::int64_t by, std::uint32_t word) {
  counts_[pair] += by;
  if (by <= 0) return;
  Places& places = new_places_[pair];
  if (places.empty() || places.back() != word) places.push_back(word);
}

void BpeLearner::push(Candidate candidate) {
  queue_.push_back(std::move(candidate));
  std::push_heap(queue_.begin(), queue_.end());
}

BpeLearner::Candidate BpeLearner::pop() {
  std::pop_heap(queue_.begin(), queue_.end());
  Candidate best = std::move(queue_.back());
  queue_.pop_back();
  return best;
}

void BpeLearner::push_new_candidates() {
  for (auto& [pair, places] : new_places_)
    if (const std::int64_t count = counts_[pair]; count > 0) push({count, pair, std::move(places)});
  new_places_.clear();
}

void BpeLearner::merge_in_word(std::uint32_t index, const Merge& merge) {
  Word& word = words_[index];
  std::int32_t* const symbols = symbols_.data() + word.begin;
  std::uint32_t kept = 0;
  for (std::uint32_t i = 0; i < word.size; ++i) {
    if (symbols[i] != merge.left || i + 1 == word.size || symbols[i + 1] != merge.right) {
      symbols[kept++] = symbols[i];
      continue;
    }
    if (kept > 0) {
      change(key(symbols[kept - 1], merge.left), -word.count, index);
      change(key(symbols[kept - 1], merge.merged), word.count, index);
    }
    if (i + 2 < word.size) {
      change(key(merge.right, symbols[i + 2]), -word.count, index);
      change(key(merge.merged, symbols[i + 2]), word.count, index);
    }
    symbols[kept++] = merge.merged;
    ++i;
  }
  word.size = kept;
}

void BpeLearner::learn(std::int64_t vocab_size, std::int64_t min_count,
                       const std::function<void(std::size_t tokens)>& each) {
  push_new_candidates();
  while (static_cast<std::int64_t>(tokens_.size()) < vocab_size && !queue_.empty()) {
    Candidate best = pop();
    if (const std::int64_t count = counts_[best.pair]; count != best.count) {
      best.count = count;
      push(std::move(best));
      continue;
    }
    if (best.count < 1 || best.count < min_count) return;
    Merge merge{static_cast<std::int32_t>(best.pair >> 32), static_cast<std::int32_t>(best.pair)};
    merge.merged = token_id(tokens_[static_cast<std::size_t>(merge.left)] +
                            tokens_[static_cast<std::size_t>(merge.right)]);
    merges_.push_back(merge);
    for (const std::uint32_t word : best.places) merge_in_word(word, merge);
    push_new_candidates();
    if (each) each(tokens_.size());
  }
}

}  // namespace sortie::trainer
