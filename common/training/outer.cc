#include "common/training/outer.h"

#include <arpa/inet.h>
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <concepts>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <type_traits>

#include "common/base/printable.h"
#include "common/base/utf8.h"

namespace sortie::training {
namespace outer_json {
namespace {

using Json = nlohmann::json;

// Limits: what every JSON library represents exactly; more parts and sites than any run has; lines
// that stay within the 64 KiB of the socket.
constexpr std::int64_t kMostCount = std::int64_t{1} << 53;
constexpr std::int64_t kMostParts = 1 << 20;
constexpr std::size_t kMostSites = 256, kMostNameBytes = 63, kMostHostBytes = 255,
                      kMostReasonBytes = 1000;
constexpr std::size_t kKeyDigits = 64;
constexpr double kMostSeconds = 1e9, kWeightError = 1e-6;

bool is_hexadecimal(std::string_view text) {
  return std::ranges::all_of(
      text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool is_name(std::string_view text, std::size_t most) {
  const auto fits = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '_' || c == '.';
  };
  return !text.empty() && text.size() <= most && text[0] != '.' && text[0] != '-' &&
         std::ranges::all_of(text, fits);
}

/// Checks a site's name, which becomes the name of a folder.
bool is_site(std::string_view text) {
  return is_name(text, kMostNameBytes);
}

/// Checks "10.0.0.1:40000", "[fd00::1]:40000", or through the launcher "launcher/NAME:40000".
bool is_address(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) return false;
  const char* const end = text.data() + text.size();
  std::uint16_t port = 0;
  const auto [rest, error] = std::from_chars(text.data() + colon + 1, end, port);
  if (error != std::errc() || rest != end || port == 0) return false;
  if (text.starts_with(kThroughLauncher))
    return is_name(std::string_view(text).substr(0, colon).substr(kThroughLauncher.size()),
                   kMostHostBytes);
  if (text.size() > kMostNameBytes) return false;
  in6_addr ignored{};
  if (text[0] != '[') return ::inet_pton(AF_INET, text.substr(0, colon).c_str(), &ignored) == 1;
  return colon > 2 && text[colon - 1] == ']' &&
         ::inet_pton(AF_INET6, text.substr(1, colon - 2).c_str(), &ignored) == 1;
}

/// Truncates a text to `most` bytes at a character boundary.
std::string cut(std::string text, std::size_t most) {
  if (text.size() <= most) return text;
  std::size_t kept = 0;
  while (const std::size_t next = utf8_length(std::string_view(text).substr(kept))) {
    if (kept + next > most) break;
    kept += next;
  }
  text.resize(kept);
  return text;
}

// The allowed forms of texts. A text may be empty only if `may_be_empty` is set.
struct SiteName {
  static constexpr std::string_view kWhat = "the name of a site";
  static bool fits(const std::string& text) { return is_site(text); }
};
struct Address {
  static constexpr std::string_view kWhat = "a numeric address with a port";
  static bool fits(const std::string& text) { return is_address(text); }
};
struct Key {
  static constexpr std::string_view kWhat = "32 bytes in hexadecimal";
  static bool fits(const std::string& text) {
    return text.size() == kKeyDigits && is_hexadecimal(text);
  }
};
struct Reason {
  static constexpr std::string_view kWhat = "a text of at most 1000 bytes";
  static bool fits(const std::string& text) { return text.size() <= kMostReasonBytes; }
};

// The members of each message, used for reading and writing: key, target, allowed values.

template <class T, class Which>
concept Is = std::same_as<std::remove_cvref_t<T>, Which>;

void visit(auto&& m, Is<OuterJoin> auto& e) {
  m.template text<SiteName>("site", e.site, false);
  m.whole("parts", e.parts, 1, kMostParts);
  m.whole("part", e.part, 0, e.parts - 1);
  m.whole("round", e.round, 0, kMostCount);
  m.hash("hash", e.hash);
  m.flag("fresh", e.fresh);
  m.whole("position", e.position, 0, kMostCount);
  m.whole("elements", e.elements, 0, kMostCount);
  m.template text<Address>("address", e.address, true);
  m.whole("steps_in_vain", e.steps_in_vain, 0, kMostCount);
  m.whole_or_zero("work_steps", e.work_steps, kMostCount);
  m.whole_or_zero("first_sample", e.first_sample, kMostCount);
}
void visit(auto&& m, Is<OuterJoined> auto& e) {
  m.whole("round", e.round, 0, kMostCount);
  m.sites("donors", e.donors);
  m.flag("over", e.over);
}
void visit(auto&& m, Is<OuterNext> auto& e) {
  m.whole("round", e.round, 1, kMostCount);
  m.number("step_seconds", e.step_seconds, kMostSeconds);
}
void visit(auto&& m, Is<OuterWork> auto& e) {
  m.whole("round", e.round, 1, kMostCount);
  m.whole("steps", e.steps, 0, kMostCount);
  m.whole("batch", e.batch, 0, kMostCount);
  m.whole("first_sample", e.first_sample, 0, kMostCount);
}
void visit(auto&& m, Is<OuterReady> auto& e) {
  m.whole("round", e.round, 1, kMostCount);
  m.whole("fragment", e.fragment, 0, kMostParts);
  m.whole("tokens", e.tokens, 0, kMostCount);
  m.flag("abstains", e.abstains);
  m.template text<Reason>("reason", e.reason, true);
}
void visit(auto&& m, Is<OuterMember> auto& e) {
  m.template text<SiteName>("site", e.site, false);
  m.template text<Address>("address", e.address, true);
  m.number("weight", e.weight, 1.0);
}
void visit(auto&& m, Is<OuterExchange> auto& e) {
  m.whole("round", e.round, 1, kMostCount);
  m.whole("fragment", e.fragment, 0, kMostParts);
  m.count("epoch", e.epoch, 1);
  m.members("members", e.members);
  m.template text<Key>("key", e.key, false);
}
void visit(auto&& m, Is<OuterVote> auto& e) {
  m.whole("round", e.round, 1, kMostCount);
  m.whole("fragment", e.fragment, 0, kMostParts);
  m.count("epoch", e.epoch, 1);
  m.flag("done", e.done);
  m.hash("hash", e.hash);
  m.template text<Reason>("reason", e.reason, true);
  m.template text<SiteName>("suspect", e.suspect, true);
}
void visit(auto&& m, Is<OuterDecision> auto& e) {
  m.whole("round", e.round, 1, kMostCount);
  m.whole("fragment", e.fragment, 0, kMostParts);
  m.count("epoch", e.epoch, 1);
  m.flag("commit", e.commit);
  m.template text<Reason>("reason", e.reason, true);
}
void visit(auto&& m, Is<OuterLeave> auto& e) {
  m.template text<Reason>("reason", e.reason, true);
}
void visit(auto&& m, Is<OuterAbort> auto& e) {
  m.count("epoch", e.epoch, 1);
  m.template text<Reason>("reason", e.reason, true);
}
void visit(auto&& m, Is<OuterRefused> auto& e) {
  m.template text<Reason>("reason", e.reason, true);
}

template <class T>
constexpr const char* kDo = nullptr;
template <>
constexpr const char* kDo<OuterJoin> = "join";
template <>
constexpr const char* kDo<OuterNext> = "next";
template <>
constexpr const char* kDo<OuterReady> = "ready";
template <>
constexpr const char* kDo<OuterVote> = "vote";
template <>
constexpr const char* kDo<OuterLeave> = "leave";
template <>
constexpr const char* kDo<OuterJoined> = "joined";
template <>
constexpr const char* kDo<OuterWork> = "work";
template <>
constexpr const char* kDo<OuterExchange> = "exchange";
template <>
constexpr const char* kDo<OuterDecision> = "decision";
template <>
constexpr const char* kDo<OuterAbort> = "abort";
template <>
constexpr const char* kDo<OuterRefused> = "refused";

struct Writer {
  Json& json;

  void whole(const char* key, std::int64_t value, std::int64_t, std::int64_t) { json[key] = value; }
  void whole_or_zero(const char* key, std::int64_t value, std::int64_t) {
    if (value != 0) json[key] = value;
  }
  void count(const char* key, std::uint64_t value, std::uint64_t) { json[key] = value; }
  void number(const char* key, double value, double) { json[key] = value; }
  void flag(const char* key, bool value) { json[key] = value; }
  void hash(const char* key, std::uint64_t value) { json[key] = fmt::format("{:016x}", value); }
  /// Omits empty texts. Reasons are sanitized, because they may contain bytes from peers.
  template <class Form>
  void text(const char* key, const std::string& value, bool) {
    if (value.empty()) return;
    json[key] = std::same_as<Form, Reason> ? cut(printable(value), kMostReasonBytes) : value;
  }
  void sites(const char* key, const std::vector<std::string>& value) { json[key] = value; }
  void members(const char* key, const std::vector<OuterMember>& value) {
    Json& list = json[key] = Json::array();
    for (const OuterMember& member : value)
      visit(Writer{list.emplace_back(Json::object())}, member);
  }
};

/// Keeps the first error.
struct Reader {
  const Json& json;
  std::string& wrong;

  void whole(const char* key, std::int64_t& target, std::int64_t low, std::int64_t high) {
    const Json* const value = find(key);
    if (value == nullptr) return;
    if (!value->is_number_integer() ||
        (value->is_number_unsigned() && value->get<std::uint64_t>() > std::uint64_t{kMostCount}))
      return refuse(key, "no whole number");
    target = value->get<std::int64_t>();
    if (target < low || target > high)
      refuse(key, fmt::format("{} is not within {} and {}", target, low, high));
  }
  /// Absent means 0.
  void whole_or_zero(const char* key, std::int64_t& target, std::int64_t high) {
    if (json.contains(key)) whole(key, target, 0, high);
  }
  void count(const char* key, std::uint64_t& target, std::uint64_t low) {
    std::int64_t value = 0;
    whole(key, value, static_cast<std::int64_t>(low), kMostCount);
    target = static_cast<std::uint64_t>(value);
  }
  void number(const char* key, double& target, double high) {
    const Json* const value = find(key);
    if (value == nullptr) return;
    if (!value->is_number()) return refuse(key, "no number");
    target = value->get<double>();
    if (!std::isfinite(target) || target < 0.0 || target > high)
      refuse(key, fmt::format("{} is not within 0 and {}", target, high));
  }
  void flag(const char* key, bool& target) {
    const Json* const value = find(key);
    if (value == nullptr) return;
    if (!value->is_boolean()) return refuse(key, "neither true nor false");
    target = value->get<bool>();
  }
  void hash(const char* key, std::uint64_t& target) {
    const Json* const value = find(key);
    if (value == nullptr) return;
    const std::string text = value->is_string() ? value->get<std::string>() : std::string();
    if (text.empty() || text.size() > 16 || !is_hexadecimal(text))
      return refuse(key, "no text of 1 to 16 hexadecimal digits");
    std::from_chars(text.data(), text.data() + text.size(), target, 16);
  }
  template <class Form>
  void text(const char* key, std::string& target, bool may_be_empty) {
    const auto found = json.find(key);
    if (found == json.end() && may_be_empty) return;
    if (found == json.end()) return refuse(key, "missing");
    if (!found->is_string()) return refuse(key, "no text");
    target = found->get<std::string>();
    if (target.empty() && may_be_empty) return;
    if (!Form::fits(target)) refuse(key, fmt::format("not {}", Form::kWhat));
  }
  void sites(const char* key, std::vector<std::string>& target) {
    const Json* const list = list_at(key);
    if (list == nullptr) return;
    for (const Json& one : *list) {
      if (!one.is_string() || !is_site(target.emplace_back(one.get<std::string>())))
        return refuse(key, fmt::format("not each one is {}", SiteName::kWhat));
    }
    if (std::set<std::string>(target.begin(), target.end()).size() != target.size())
      refuse(key, "a site is in it twice");
  }
  void members(const char* key, std::vector<OuterMember>& target) {
    const Json* const list = list_at(key);
    if (list == nullptr) return;
    if (list->empty()) return refuse(key, "empty");
    std::set<std::string> seen;
    double sum = 0.0;
    for (const Json& one : *list) {
      if (!one.is_object()) return refuse(key, "not a list of objects");
      visit(Reader{one, wrong}, target.emplace_back());
      if (!seen.insert(target.back().site).second) refuse(key, "a site is in it twice");
      sum += target.back().weight;
    }
    if (std::abs(sum - 1.0) > kWeightError)
      refuse(key, fmt::format("the weights sum up to {}, not to 1", sum));
  }

 private:
  const Json* find(const char* key) {
    const auto found = json.find(key);
    if (found != json.end()) return &*found;
    refuse(key, "missing");
    return nullptr;
  }
  const Json* list_at(const char* key) {
    const Json* const list = find(key);
    if (list == nullptr || (list->is_array() && list->size() <= kMostSites)) return list;
    refuse(key, fmt::format("no list of at most {}", kMostSites));
    return nullptr;
  }
  void refuse(const char* key, std::string_view what) {
    if (wrong.empty()) wrong = fmt::format("{}: {}", key, what);
  }
};

template <class Variant>
Json write(const Variant& variant, std::uint64_t number) {
  return std::visit(
      [number](const auto& value) {
        Json json = {{"type", "outer"},
                     {"number", number},
                     {"do", kDo<std::remove_cvref_t<decltype(value)>>}};
        visit(Writer{json}, value);
        return json;
      },
      variant);
}

template <class Which, class Variant>
void read_as(const std::string& what, const Json& json, std::string& wrong, Variant& into,
             bool& known) {
  if (what != kDo<Which>) return;
  known = true;
  visit(Reader{json, wrong}, into.template emplace<Which>());
}

template <class... Which>
Error read(const char* who, const Json& json, std::uint64_t& number, std::variant<Which...>& into) {
  std::string wrong;
  bool known = false;
  if (!json.is_object() || !json.contains("type") || json["type"] != "outer") {
    wrong = "type: not \"outer\"";
  } else {
    const auto what = json.find("do");
    Reader(json, wrong).count("number", number, 0);
    if (what != json.end() && what->is_string())
      (read_as<Which>(what->template get<std::string>(), json, wrong, into, known), ...);
    if (!known && wrong.empty()) wrong = "do: none of those that are known";
  }
  return {ErrorCode::protocol, wrong.empty() ? wrong : fmt::format("{}: {}", who, wrong)};
}

}  // namespace
}  // namespace outer_json

nlohmann::json to_json(const OuterQuestion& question, std::uint64_t number) {
  return outer_json::write(question, number);
}

nlohmann::json to_json(const OuterAnswer& answer, std::uint64_t number) {
  return outer_json::write(answer, number);
}

Result<NumberedQuestion> parse_outer_question(const nlohmann::json& object) {
  NumberedQuestion out;
  Error error = outer_json::read("a leader's question", object, out.number, out.question);
  if (error.message.empty() && out.number == 0)
    error.message = "a leader's question: number: 0 is not within 1 and 2^53";
  if (!error.message.empty()) return std::unexpected(std::move(error));
  return out;
}

Result<NumberedAnswer> parse_outer_answer(const nlohmann::json& object) {
  NumberedAnswer out;
  Error error = outer_json::read("the coordinator's answer", object, out.number, out.answer);
  const bool unasked = std::holds_alternative<OuterAbort>(out.answer);
  const bool either = std::holds_alternative<OuterRefused>(out.answer);
  if (error.message.empty() && !either && unasked != (out.number == 0))
    error.message =
        fmt::format("the coordinator's answer: number: {} with {}", out.number,
                    unasked ? "an abort that was not requested" : "what answers a question");
  if (!error.message.empty()) return std::unexpected(std::move(error));
  return out;
}

}  // namespace sortie::training
