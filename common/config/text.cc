#include "common/config/text.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "common/base/printable.h"
#include "common/base/utf8.h"

namespace sortie::config {
namespace {

struct Unit {
  std::string_view name;
  std::int64_t milliseconds;
};
constexpr Unit kUnits[] = {{"h", 3600000}, {"m", 60000}, {"s", 1000}, {"ms", 1}};

constexpr std::int64_t kMaxDuration = 10'000LL * 24 * 3600 * 1000;  // 10000 days

std::unexpected<Error> bad_duration(std::string_view text, std::string_view why) {
  return fail(ErrorCode::config,
              fmt::format("{} {}; write a number and a unit, like \"500ms\", \"30s\", \"2m\" or "
                          "\"1h\"",
                          quote(shorten(text)), why));
}

/// The character, or its TOML escape if a terminal obeys it or it changes how the text around it is
/// shown.
std::string escaped_or_same(std::string_view character) {
  const char* at = character.data();
  const char32_t point = take_char(at);
  if (point >= 0xa0 && !is_hidden_control(point)) return std::string(character);
  const auto number = static_cast<std::uint32_t>(point);
  return point > 0xffff ? fmt::format("\\U{:08X}", number) : fmt::format("\\u{:04X}", number);
}

}  // namespace

std::string quote(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const char c = text.front();
    if (length == 0)
      out += "\xef\xbf\xbd";
    else if (length > 1)
      out += escaped_or_same(text.substr(0, length));
    else if (c == '"' || c == '\\')
      (out += '\\') += c;
    else if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      out += fmt::format("\\u{:04X}", static_cast<unsigned>(c));
    else
      out += c;
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return out += '"';
}

std::string number_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == text.npos) text += ".0";
  return text;
}

Result<std::chrono::milliseconds> parse_duration(std::string_view text) {
  const std::size_t end = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string_view digits = text.substr(0, end);
  const std::string_view unit_name = text.substr(end);
  const std::size_t dot = digits.find('.');
  const std::string_view whole = digits.substr(0, dot);
  const std::string_view fraction = dot == digits.npos ? "" : digits.substr(dot + 1);
  if (whole.empty() || fraction.find('.') != fraction.npos ||
      (dot != digits.npos && fraction.empty()))
    return bad_duration(text, "is no duration");
  if (unit_name.empty()) return bad_duration(text, "has no unit");
  const auto* unit = std::find_if(std::begin(kUnits), std::end(kUnits),
                                  [&](const Unit& u) { return u.name == unit_name; });
  if (unit == std::end(kUnits)) return bad_duration(text, "has an unknown unit");
  if (whole.size() > 15 || fraction.size() > 9) return bad_duration(text, "has too many digits");
  std::int64_t value = 0;
  for (const char c : whole) value = value * 10 + (c - '0');
  if (value > kMaxDuration / unit->milliseconds)
    return bad_duration(text, "is longer than 10000 days");
  value *= unit->milliseconds;
  std::int64_t numerator = 0;
  std::int64_t denominator = 1;
  for (const char c : fraction) {
    numerator = numerator * 10 + (c - '0');
    denominator *= 10;
  }
  if (numerator * unit->milliseconds % denominator != 0)
    return bad_duration(text, "is no whole number of milliseconds");
  return std::chrono::milliseconds(value + numerator * unit->milliseconds / denominator);
}

std::string duration_text(std::chrono::milliseconds value) {
  if (value.count() == 0) return "0s";
  for (const Unit& unit : kUnits)
    if (value.count() % unit.milliseconds == 0)
      return fmt::format("{}{}", value.count() / unit.milliseconds, unit.name);
  return fmt::format("{}ms", value.count());
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const std::size_t first = text.find_first_not_of(kBlank);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

std::string shorten(std::string_view text) {
  constexpr std::size_t kMax = 60;
  if (text.size() <= kMax) return std::string(text);
  std::size_t end = kMax - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "...";
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1);
  std::vector<std::size_t> last(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

std::string_view nearest(std::string_view name, const std::vector<std::string_view>& candidates) {
  std::string_view best;
  std::size_t best_distance = std::max<std::size_t>(1, name.size() / 3) + 1;
  std::ptrdiff_t best_prefix = 0;      // the tie-break: "of" is nearer to "off" than to "on"
  if (name.size() > 100) return best;  // no known name is that long, and the cost is quadratic
  for (const std::string_view candidate : candidates) {
    const std::size_t distance = edit_distance(name, candidate);
    const std::ptrdiff_t prefix = std::ranges::mismatch(name, candidate).in1 - name.begin();
    if (distance > best_distance || (distance == best_distance && prefix <= best_prefix)) continue;
    if (best.empty() && distance == best_distance) continue;  // too far away
    best = candidate;
    best_distance = distance;
    best_prefix = prefix;
  }
  return best;
}

std::string nearest_multiples(std::int64_t value, std::int64_t unit) {
  const std::int64_t below = value / unit * unit;
  std::int64_t above = 0;
  if (__builtin_add_overflow(below, unit, &above)) return fmt::format("{}", below);
  return below == 0 ? fmt::format("{}", above) : fmt::format("{} or {}", below, above);
}

}  // namespace sortie::config
