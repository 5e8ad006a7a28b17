#include "trainer/tokenizer/spm_bpe.h"

#include <algorithm>

namespace sortie::trainer::spm {
namespace {

using Candidate = BpeEncoder::Candidate;

/// Heap order: the highest score first, then the leftmost.
bool comes_later(const Candidate& a, const Candidate& b) {
  return a.score < b.score || (a.score == b.score && a.left > b.left);
}

constexpr std::uint32_t kSpaceBytes = 0xe29681;

}  // namespace

std::optional<IdRules> IdRules::create(const Model& model) {
  IdRules rules;
  rules.byte_fallback_ = model.byte_fallback;
  for (std::size_t i = 0; i < model.pieces.size(); ++i) {
    const Piece& piece = model.pieces[i];
    const auto id = static_cast<std::int32_t>(i);
    if (piece.type == Piece::Type::unknown) rules.unknown_ = id;
    // "<0x0A>"
    if (piece.type == Piece::Type::byte && piece.text.size() == 6)
      rules.bytes_[std::stoul(piece.text.substr(3, 2), nullptr, 16) & 255] = id;
  }
  if (rules.unknown_ < 0) return std::nullopt;
  return rules;
}

std::optional<BpeEncoder> BpeEncoder::create(const Model& model, Normalizer normalizer) {
  const auto rules = IdRules::create(model);
  if (!rules || model.type != Model::Type::bpe) return std::nullopt;
  BpeEncoder encoder(std::move(normalizer), *rules);
  encoder.texts_.reserve(model.pieces.size());  // keys must not move
  for (std::size_t i = 0; i < model.pieces.size(); ++i) {
    const Piece& piece = model.pieces[i];
    if (piece.type == Piece::Type::unused || piece.text.empty() ||
        piece.text.find('\0') != piece.text.npos)
      return std::nullopt;
    const bool merged =
        piece.type == Piece::Type::normal || piece.type == Piece::Type::user_defined;
    if (!merged && piece.text.size() <= char_bytes(piece.text[0])) return std::nullopt;
    encoder.texts_.push_back(piece.text);
    if (!merged) continue;
    encoder.pieces_.emplace(encoder.texts_.back(),
                            Known{static_cast<std::int32_t>(i), piece.score});
    encoder.add_pairs(piece.text);
    if (piece.type == Piece::Type::user_defined)
      encoder.longest_symbol_ = std::max(encoder.longest_symbol_, piece.text.size());
  }
  for (const Piece& piece : model.pieces)
    if (piece.type != Piece::Type::normal && piece.type != Piece::Type::user_defined &&
        encoder.pieces_.contains(piece.text))
      return std::nullopt;
  return encoder;
}

/// Maps a character to a number: below kSpaceCode for ASCII, kSpaceCode for the space symbol, above
/// kTable for others.
std::uint32_t BpeEncoder::code_of(std::string_view character) {
  std::uint32_t code = 0;
  for (const char c : character) code = code << 8 | static_cast<unsigned char>(c);
  return code == kSpaceBytes ? kSpaceCode : code < kSpaceCode ? code : code + kTable;
}

bool BpeEncoder::joins(std::uint32_t left, std::uint32_t right) const {
  if (left < kTable && right < kTable) return joined_[left * kTable + right];
  return joined_others_.contains(std::uint64_t{left} << 32 | right);
}

void BpeEncoder::add_pairs(std::string_view piece) {
  std::optional<std::uint32_t> left;
  while (!piece.empty()) {
    const std::size_t size = std::min(char_bytes(piece[0]), piece.size());
    const std::uint32_t right = code_of(piece.substr(0, size));
    piece.remove_prefix(size);
    if (left && *left < kTable && right < kTable)
      joined_[*left * kTable + right] = true;
    else if (left)
      joined_others_.insert(std::uint64_t{*left} << 32 | right);
    left = right;
  }
}

void BpeEncoder::encode(std::string_view text, Scratch& scratch,
                        std::vector<std::int32_t>& ids) const {
  constexpr std::size_t kWindow = std::size_t{1} << 16;
  const std::size_t begin = ids.size();
  scratch.text.clear();
  Normalizer::Pass pass(normalizer_, text);
  while (!pass.done()) {
    // The step grows while the text has no position to cut at.
    pass.append(scratch.text, std::max(kWindow, scratch.text.size()));
    encode_words(scratch, pass.done(), begin, ids);
  }
}

void BpeEncoder::encode_words(Scratch& scratch, bool end, std::size_t begin,
                              std::vector<std::int32_t>& ids) const {
  const std::string_view text = scratch.text;
  // The end of the window may cut a user-defined symbol.
  const std::size_t margin = end ? 0 : std::min(text.size(), longest_symbol_ + 4);
  std::size_t word = 0;  // beginning of the first word that is not yet encoded
  scratch.ends.clear();
  const auto flush = [&] {
    for (const std::size_t stop : scratch.ends) {
      encode_word(text.substr(word, stop - word), text.size() - word, scratch, begin, ids);
      word = stop;
    }
    scratch.ends.clear();
  };
  std::uint32_t left = 0;
  bool left_frozen = false;
  for (std::size_t at = 0; at < text.size() - margin;) {
    std::size_t size =
        normalizer_.has_user_symbols() ? normalizer_.user_symbol(text.substr(at)) : 0;
    const bool frozen = size > 0;
    if (!frozen) size = std::min(char_bytes(text[at]), text.size() - at);
    const std::uint32_t right = code_of(text.substr(at, size));
    if (at > 0 && (frozen || left_frozen || !joins(left, right))) {
      scratch.ends.push_back(at);
      // Spaces at the end of the text may still be removed.
      if (right != kSpaceCode && right != ' ') flush();
    }
    left = right;
    left_frozen = frozen;
    at += size;
  }
  if (end && !text.empty()) {
    scratch.ends.push_back(text.size());
    flush();
  }
  scratch.text.erase(0, word);
}

void BpeEncoder::encode_word(std::string_view word, std::size_t readable, Scratch& scratch,
                             std::size_t begin, std::vector<std::int32_t>& ids) const {
  std::span<const std::int32_t> found;
  const bool short_word = word.size() < WordCache::kMaxWord;
  if (short_word) found = scratch.cache.find(word, readable);
  if (found.empty()) {
    merge_word(word, scratch);
    if (short_word) scratch.cache.insert(word, scratch.word);
    found = scratch.word;
  }
  // A run of unknown pieces that continues keeps its one id.
  if (!rules_.independent() && ids.size() > begin && ids.back() == rules_.unknown() &&
      found.front() == rules_.unknown())
    found = found.subspan(1);
  ids.insert(ids.end(), found.begin(), found.end());
}

void BpeEncoder::offer(std::string_view word, std::int32_t left, std::int32_t right,
                       Scratch& scratch) const {
  if (left < 0 || right < 0) return;
  const Symbol& a = scratch.symbols[static_cast<std::size_t>(left)];
  const Symbol& b = scratch.symbols[static_cast<std::size_t>(right)];
  if (a.frozen || b.frozen) return;
  const auto found = pieces_.find(word.substr(a.begin, a.size + b.size));
  if (found == pieces_.end()) return;
  scratch.heap.push_back({found->second.score, left, right, a.size + b.size});
  std::ranges::push_heap(scratch.heap, comes_later);
}

/// Merges `word` and puts its ids into scratch.word.
void BpeEncoder::merge_word(std::string_view word, Scratch& scratch) const {
  std::vector<Symbol>& symbols = scratch.symbols;
  symbols.clear();
  scratch.heap.clear();
  for (std::size_t at = 0; at < word.size();) {
    std::size_t size =
        normalizer_.has_user_symbols() ? normalizer_.user_symbol(word.substr(at)) : 0;
    const bool frozen = size > 0;
    if (!frozen) size = std::min(char_bytes(word[at]), word.size() - at);
    const auto index = static_cast<std::int32_t>(symbols.size());
    symbols.push_back({static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(size), frozen,
                       index - 1, index + 1});
    at += size;
  }
  symbols.back().next = -1;
  for (std::int32_t i = 1; i < static_cast<std::int32_t>(symbols.size()); ++i)
    offer(word, i - 1, i, scratch);
  while (!scratch.heap.empty()) {
    std::ranges::pop_heap(scratch.heap, comes_later);
    const Candidate top = scratch.heap.back();
    scratch.heap.pop_back();
    Symbol& left = symbols[static_cast<std::size_t>(top.left)];
    Symbol& right = symbols[static_cast<std::size_t>(top.right)];
    if (left.size == 0 || right.size == 0 || left.size + right.size != top.size) continue;
    left.size += right.size;
    left.next = right.next;
    right.size = 0;
    if (left.next >= 0) symbols[static_cast<std::size_t>(left.next)].previous = top.left;
    offer(word, left.previous, top.left, scratch);
    offer(word, top.left, left.next, scratch);
  }
  scratch.word.clear();
  for (std::int32_t i = 0; i >= 0; i = symbols[static_cast<std::size_t>(i)].next) {
    const Symbol& symbol = symbols[static_cast<std::size_t>(i)];
    const std::string_view piece = word.substr(symbol.begin, symbol.size);
    const auto found = pieces_.find(piece);
    rules_.add(piece, found == pieces_.end() ? rules_.unknown() : found->second.id, 0,
               scratch.word);
  }
}

std::size_t BpeEncoder::find_cut(std::string_view text, std::size_t from) const {
  if (!normalizer_.keeps_text() || normalizer_.has_user_symbols() || !rules_.independent())
    return std::string_view::npos;
  const auto code = [](char c) {  // kTable for bytes that are not ASCII
    const auto byte = static_cast<unsigned char>(c);
    return byte == ' ' ? kSpaceCode : byte < kSpaceCode ? std::uint32_t{byte} : kTable;
  };
  for (std::size_t at = std::max<std::size_t>(from, 1); at < text.size(); ++at) {
    const std::uint32_t left = code(text[at - 1]), right = code(text[at]);
    if (left < kTable && right < kTable && !joined_[left * kTable + right]) return at;
  }
  return std::string_view::npos;
}

}  // namespace sortie::trainer::spm
