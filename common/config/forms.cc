#include "common/config/forms.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "common/config/architectures.h"
#include "common/config/characters.h"
#include "common/config/hostgroups.h"
#include "common/config/hostlist.h"
#include "common/config/text.h"

namespace sortie::config {
namespace {

bool only(std::string_view text, std::string_view more) {
  return std::ranges::all_of(text, [&](char c) {
    return kLetters.contains(c) || kDigits.contains(c) || more.contains(c);
  });
}

std::string no_control(std::string_view text) {
  for (const char c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      return fmt::format("{} has a control character; remove it", quote(shorten(text)));
  return {};
}

}  // namespace

std::string check_host_item(std::string_view text) {
  const HostGroups any = HostGroups::any();  // the groups file is read when the job is planned
  const auto hosts = parse_host_line(text, 1, &any);
  return hosts ? std::string() : hosts.error().message;
}

std::string check_user(std::string_view text) {
  if (text.empty() || (only(text, "._-@\\+$") && text.front() != '-' && text.size() <= 256))
    return {};
  return fmt::format("{} is no user name; write the login name alone", quote(shorten(text)));
}

std::string check_address(std::string_view text) {
  if (text.empty() || (only(text, "._:%-") && text.front() != '-' && text.size() <= 253)) return {};
  return fmt::format("{} is no host name or address; write one name or IP address alone",
                     quote(shorten(text)));
}

std::chrono::milliseconds launcher_hold(std::string_view on_launcher_loss) {
  constexpr std::string_view kHold = "hold ";
  if (!on_launcher_loss.starts_with(kHold)) return {};
  return parse_duration(on_launcher_loss.substr(kHold.size()))
      .value_or(std::chrono::milliseconds());
}

std::string check_launcher_loss(std::string_view text) {
  const auto time = launcher_hold(text);
  if (text == "kill" || (time >= std::chrono::seconds(1) && time <= std::chrono::hours(24)))
    return {};
  return fmt::format("{} is no valid policy; write \"kill\" or \"hold 120s\" (1s to 24h)",
                     quote(shorten(text)));
}

std::string check_interface(std::string_view text) {
  constexpr std::size_t kMaxNameBytes = 15;  // the kernel's IFNAMSIZ without the terminating zero
  if (text.empty()) return {};
  const std::size_t slash = text.find('/');
  if (slash != text.npos) {
    const std::string address(text.substr(0, slash));
    const std::string_view bits = text.substr(slash + 1);
    unsigned char bytes[16];
    const int most = ::inet_pton(AF_INET, address.c_str(), bytes) == 1    ? 32
                     : ::inet_pton(AF_INET6, address.c_str(), bytes) == 1 ? 128
                                                                          : -1;
    int value = -1;
    const auto [end, error] = std::from_chars(bits.data(), bits.data() + bits.size(), value);
    if (error == std::errc() && end == bits.data() + bits.size() && value >= 0 && value <= most)
      return {};
    return fmt::format("{} is no network; write it like \"10.1.0.0/16\" or \"fd00::/64\"",
                       quote(shorten(text)));
  }
  if (only(text, "._-*:") && text.size() <= kMaxNameBytes) return {};
  return fmt::format(
      "{} is no name of an interface; write one of at most {} letters like \"eth1\", a pattern "
      "like \"ib*\", or a network like \"10.1.0.0/16\"",
      quote(shorten(text)), kMaxNameBytes);
}

std::string check_path(std::string_view text) {
  if (text.starts_with('~') && text != "~" && !text.starts_with("~/"))
    return fmt::format("{} names another user's home folder; only ~/ is expanded, write the path",
                       quote(shorten(text)));
  return no_control(text);
}

std::string check_data_prefix(std::string_view text) {
  if (text.empty()) return "an empty prefix names no file; write the path without .bin or .idx";
  if (text.ends_with(".bin") || text.ends_with(".idx"))
    return fmt::format("{} is one of the two files of a prefix; write {}", quote(shorten(text)),
                       quote(text.substr(0, text.size() - 4)));
  return check_path(text);
}

std::string check_weight(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc{} && end == text.data() + text.size() && value > 0 && value <= 1e9)
    return {};
  return fmt::format("{} is no weight; write a number above 0 in quotes, like \"0.7\"",
                     quote(shorten(text)));
}

std::string check_tokenizer(std::string_view text) {
  if (text.empty() || text == "byte") return {};
  const std::string_view file = tokenizer_file(text);
  if (file.empty())
    return fmt::format("{} is no tokenizer; write \"byte\", \"sentencepiece:FILE\" or \"hf:FILE\"",
                       quote(shorten(text)));
  return check_path(file);
}

std::string check_set_name(std::string_view text) {
  const bool good = std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
  if (good && !text.empty()) return {};
  return fmt::format("{} is no name of a validation set; use letters, digits, '_', '-' and '.'",
                     quote(shorten(text)));
}

std::string_view tokenizer_file(std::string_view text) {
  for (const std::string_view kind : {"sentencepiece:", "hf:"})
    if (text.starts_with(kind)) return text.substr(kind.size());
  return {};
}

std::string check_preset(std::string_view text) {
  if (text.empty() || find_preset(text) != nullptr) return {};
  std::vector<std::string> names;
  for (const Preset& preset : presets()) names.emplace_back(preset.name);
  return fmt::format("{} is no preset; use {}", quote(shorten(text)), fmt::join(names, ", "));
}

std::string check_attention_layer(std::string_view text) {
  if (text == "global" || text == "local") return {};
  return fmt::format("{} is no kind of layer; write \"global\" or \"local\"", quote(shorten(text)));
}

std::string check_env_name(std::string_view text) {
  if (!text.empty() && only(text, "_") && !kDigits.contains(text.front())) return {};
  return fmt::format(
      "{} is no name of an environment variable; use letters, digits and _, no digit first",
      quote(shorten(text)));
}

std::string check_env_pattern(std::string_view text) {
  if (!text.empty() && only(text, "_*") && !kDigits.contains(text.front())) return {};
  return fmt::format(
      "{} is no name pattern; use letters, digits, _ and * (any characters), like \"NCCL_*\"",
      quote(shorten(text)));
}

std::string check_failure_class(std::string_view text) {
  static constexpr std::array<std::string_view, 6> kClasses = {"app",  "software", "hardware",
                                                               "hang", "oom",      "preempted"};
  if (std::ranges::find(kClasses, text) != kClasses.end()) return {};
  return fmt::format("{} is no failure class; use {}", quote(shorten(text)),
                     fmt::join(kClasses, ", "));
}

namespace {

/// First and last code of "75" or "64-69"; nullopt for other text.
std::optional<std::pair<int, int>> exit_code_range(std::string_view text) {
  const auto number = [](std::string_view digits) -> std::optional<int> {
    int value = -1;
    const char* end = digits.data() + digits.size();
    const auto [stopped, error] = std::from_chars(digits.data(), end, value);
    if (error != std::errc{} || stopped != end || value < 0 || value > 255) return std::nullopt;
    return value;
  };
  const std::size_t dash = text.find('-');
  const auto first = number(text.substr(0, dash));
  const auto last = dash == text.npos ? first : number(text.substr(dash + 1));
  if (!first || !last || *first > *last) return std::nullopt;
  return std::pair(*first, *last);
}

constexpr std::string_view kRollback = "rollback ";

}  // namespace

std::int64_t layer_count(std::string_view text) {
  constexpr std::int64_t kMost = 1 << 20;
  std::int64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && count >= 1 && count <= kMost ? count : 0;
}

std::string check_layer_count(std::string_view text) {
  if (layer_count(text) > 0) return {};
  return fmt::format("{} is no number of layers; write one of 1 or more, like \"13\"",
                     quote(shorten(text)));
}

std::string check_exit_codes(std::string_view text) {
  if (exit_code_range(text)) return {};
  return fmt::format(
      "{} is neither an exit code (0 to 255) nor a range of them; write \"75\" or \"64-69\"",
      quote(shorten(text)));
}

bool names_exit_code(const std::vector<std::string>& items, int code) {
  return std::ranges::any_of(items, [code](const std::string& item) {
    const auto range = exit_code_range(item);
    return range && code >= range->first && code <= range->second;
  });
}

std::string check_step_policy(std::string_view text) {
  if (text == "ignore" || text == "skip" || text == "stop" || rollback_steps(text) > 0) return {};
  return fmt::format("{} is no policy; write \"skip\", \"stop\" or \"rollback N\" with N steps",
                     quote(shorten(text)));
}

std::int64_t rollback_steps(std::string_view policy) {
  if (!policy.starts_with(kRollback)) return 0;
  const std::string_view digits = policy.substr(kRollback.size());
  std::int64_t steps = 0;
  const char* end = digits.data() + digits.size();
  const auto [stopped, error] = std::from_chars(digits.data(), end, steps);
  return error == std::errc{} && stopped == end && steps > 0 ? steps : 0;
}

std::string check_any(std::string_view text) {
  if (!text.contains('\0')) return {};
  return fmt::format("{} has a NUL character; remove it", quote(shorten(text)));
}

}  // namespace sortie::config
