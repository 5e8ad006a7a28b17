#include "trainer/tokenizer/spm_normalizer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/utf8.h"

namespace sortie::trainer::spm {
namespace {

// Accessors for the units of a darts-clone double array, which stores the rules.
bool has_leaf(std::uint32_t unit) {
  return ((unit >> 8) & 1) != 0;
}
std::uint32_t value_of(std::uint32_t unit) {
  return unit & 0x7fffffffu;
}
std::uint32_t label_of(std::uint32_t unit) {
  return unit & 0x800000ffu;
}
std::uint32_t offset_of(std::uint32_t unit) {
  return (unit >> 10) << ((unit & (1u << 9)) >> 6);
}

}  // namespace

std::optional<Normalizer> Normalizer::create(const Model& model) {
  Normalizer normalizer;
  normalizer.dummy_prefix_ = model.dummy_prefix;
  normalizer.suffix_ = model.whitespace_as_suffix;
  normalizer.trim_ = model.remove_extra_whitespaces;
  normalizer.escape_ = model.escape_whitespaces;
  if (!model.charsmap.empty()) {
    // Layout: size of the double array, the array, the replacements.
    std::uint32_t size = 0;
    if (model.charsmap.size() <= sizeof size) return std::nullopt;
    std::memcpy(&size, model.charsmap.data(), sizeof size);
    if (size % 4 != 0 || size == 0 || size >= model.charsmap.size() - sizeof size)
      return std::nullopt;
    normalizer.units_.resize(size / 4);
    std::memcpy(normalizer.units_.data(), model.charsmap.data() + sizeof size, size);
    normalizer.replacements_ = model.charsmap.substr(sizeof size + size);
  }
  std::vector<std::pair<std::string_view, std::int32_t>> symbols;
  for (std::size_t id = 0; id < model.pieces.size(); ++id)
    if (model.pieces[id].type == Piece::Type::user_defined)
      symbols.emplace_back(model.pieces[id].text, static_cast<std::int32_t>(id));
  normalizer.symbols_ = PieceTrie(std::move(symbols));
  normalizer.find_plain_bytes();
  return normalizer;
}

void Normalizer::find_plain_bytes() {
  const auto unit_after = [&](std::uint32_t place, unsigned byte) -> std::optional<std::uint32_t> {
    place ^= byte;
    if (place >= units_.size() || label_of(units_[place]) != byte) return std::nullopt;
    return place;
  };
  for (unsigned byte = 0; byte < plain_.size(); ++byte) {
    bool plain = true;
    if (!units_.empty())
      if (const auto place = unit_after(offset_of(units_[0]), byte)) {
        const std::uint32_t below = *place ^ offset_of(units_[*place]);
        plain = !has_leaf(units_[*place]);
        for (unsigned next = 0; next < plain_.size(); ++next)
          plain = plain && !unit_after(below, next);
      }
    PieceTrie::Place root = 0;
    if (!symbols_.empty() && symbols_.step(root, static_cast<char>(byte))) plain = false;
    plain_[byte] = plain;
  }
  keeps_text_ = !dummy_prefix_ && !trim_ && escape_ && units_.empty();
}

Normalizer::Step Normalizer::step(std::string_view input) const {
  if (const auto byte = static_cast<unsigned char>(input[0]);
      byte < 0x80 && plain_[byte] &&
      (input.size() == 1 || static_cast<unsigned char>(input[1]) < 0x80))
    return {input.substr(0, 1), 1};
  if (const std::size_t symbol = symbols_.longest_prefix(input); symbol > 0)
    return {input.substr(0, symbol), symbol};
  return rule_step(input);
}

/// Applies the longest matching rule. Without one, keeps the character.
Normalizer::Step Normalizer::rule_step(std::string_view input) const {
  std::size_t longest = 0;
  std::uint32_t replacement = 0;
  if (!units_.empty()) {
    std::uint32_t place = offset_of(units_[0]);
    for (std::size_t i = 0; i < input.size(); ++i) {
      const auto byte = static_cast<unsigned char>(input[i]);
      place ^= byte;
      if (place >= units_.size() || label_of(units_[place]) != byte) break;
      const bool leaf = has_leaf(units_[place]);
      place ^= offset_of(units_[place]);
      if (!leaf || place >= units_.size()) continue;
      longest = i + 1;
      replacement = value_of(units_[place]);
    }
  }
  if (longest > 0 && replacement < replacements_.size())
    return {replacements_.c_str() + replacement, longest};
  const std::size_t size = utf8_length(input);
  if (size == 0) return {"\xef\xbf\xbd", 1};
  return {input.substr(0, size), size};
}

void Normalizer::append_escaped(std::string_view text, std::string& out) const {
  if (!escape_) {
    out += text;
    return;
  }
  for (const char c : text)
    if (c == ' ')
      out += kSpace;
    else
      out += c;
}

Normalizer::Pass::Pass(const Normalizer& normalizer, std::string_view text)
    : normalizer_(normalizer), rest_(text) {
  if (normalizer.trim_)
    while (!rest_.empty()) {
      const Step step = normalizer.step(rest_);
      if (step.text != " ") break;
      rest_.remove_prefix(step.used);
    }
  after_space_ = normalizer.trim_;
  prefix_due_ = normalizer.dummy_prefix_ && !normalizer.suffix_;
  done_ = rest_.empty();  // a text of spaces gets no prefix either
}

void Normalizer::Pass::append(std::string& out, std::size_t bytes) {
  if (done_) return;
  const std::string_view space = normalizer_.escape_ ? kSpace : " ";
  if (std::exchange(prefix_due_, false)) out += space;
  for (const std::size_t end = out.size() + bytes; !rest_.empty() && out.size() < end;) {
    Step step = normalizer_.step(rest_);
    rest_.remove_prefix(step.used);
    if (after_space_)
      step.text.remove_prefix(std::min(step.text.find_first_not_of(' '), step.text.size()));
    if (!step.text.empty()) {
      normalizer_.append_escaped(step.text, out);
      after_space_ = normalizer_.trim_ && step.text.ends_with(' ');
    }
  }
  if (!rest_.empty()) return;
  done_ = true;
  if (normalizer_.trim_)
    while (out.ends_with(space)) out.resize(out.size() - space.size());
  if (normalizer_.dummy_prefix_ && normalizer_.suffix_) out += space;
}

}  // namespace sortie::trainer::spm
