#include "launcher/host/fold_failures.h"

#include <arpa/inet.h>

#include <map>
#include <string_view>

namespace sortie::launcher {
namespace {

/// Characters of names and of addresses.
bool in_word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
         c == ':' || c == '-' || c == '_';
}

bool is_address(const std::string& word) {
  in6_addr ignored{};
  return ::inet_pton(AF_INET, word.c_str(), &ignored) == 1 ||
         ::inet_pton(AF_INET6, word.c_str(), &ignored) == 1;
}

std::string neutral_word(std::string_view word, std::string_view host) {
  if (word == host) return "<host>";
  if (is_address(std::string(word))) return "<address>";
  // "gpu01:22", "10.0.0.1:"
  const std::size_t colon = word.rfind(':');
  if (colon == word.npos) return std::string(word);
  const std::string_view name = word.substr(0, colon);
  if (name == host) return "<host>" + std::string(word.substr(colon));
  if (is_address(std::string(name))) return "<address>" + std::string(word.substr(colon));
  return std::string(word);
}

/// `text` with placeholders for host name and addresses.
std::string neutral(std::string_view text, std::string_view host) {
  std::string out;
  while (!text.empty()) {
    std::size_t end = 0;
    while (end < text.size() && in_word(text[end]) == in_word(text.front())) ++end;
    const std::string_view part = text.substr(0, end);
    if (!in_word(part.front())) {
      out += part;
    } else {
      const std::size_t last = part.find_last_not_of(".:");  // punctuation of the sentence
      const std::size_t length = last == part.npos ? 0 : last + 1;
      out += neutral_word(part.substr(0, length), host);
      out += part.substr(length);
    }
    text.remove_prefix(end);
  }
  return out;
}

template <class Key>
std::vector<FoldedFailure> fold_by(const std::vector<std::pair<std::string, std::string>>& texts,
                                   const Key& key_of) {
  std::vector<FoldedFailure> folded;
  std::map<std::string, std::size_t> places;
  for (const auto& [host, text] : texts) {
    std::string key = key_of(text, host);
    const auto [place, fresh] = places.try_emplace(key, folded.size());
    if (fresh) folded.push_back({{}, text});
    FoldedFailure& group = folded[place->second];
    if (group.text != text) group.text = std::move(key);
    group.hosts.push_back(host);
  }
  return folded;
}

}  // namespace

std::vector<FoldedFailure> fold_failures(
    const std::vector<std::pair<std::string, std::string>>& failures) {
  return fold_by(failures, neutral);
}

std::vector<FoldedFailure> fold_equal(
    const std::vector<std::pair<std::string, std::string>>& texts) {
  return fold_by(texts, [](const std::string& text, const std::string&) { return text; });
}

}  // namespace sortie::launcher
