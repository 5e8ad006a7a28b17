#include "launcher/mpi/pmix_names.h"

#include <algorithm>
#include <set>
#include <utility>

#include "launcher/mpi/pmix_status.h"

namespace sortie::launcher {

namespace {
wire::PmixNamesDone answer(std::uint64_t id, std::int32_t status) {
  wire::PmixNamesDone done;
  done.id = id;
  done.status = status;
  return done;
}
}  // namespace

std::vector<PmixRelay::Outgoing> PmixNameTable::on_question(std::size_t host,
                                                            wire::PmixNames question) {
  if (question.action == wire::PmixNames::Action::restore) return restore(host, question);
  if (restoring_ == 0) return answer_question(host, std::move(question));
  if (held_.size() >= kMaxWaiting) return {{{host}, answer(question.id, kPmixErrOutOfResource)}};
  held_.push_back({host, std::move(question)});
  return {};
}

/// Restores the names of a host; empty `keys` mean that it has reported all. Ignores hosts that are
/// not awaited, and names that another host has restored.
std::vector<PmixRelay::Outgoing> PmixNameTable::restore(std::size_t host,
                                                        const wire::PmixNames& names) {
  std::vector<PmixRelay::Outgoing> out;
  if (restoring_ == 0 || restored_.contains(host)) return out;
  if (!names.keys.empty()) {
    publish(names);
    return out;
  }
  restored_.insert(host);
  if (--restoring_ > 0) return out;
  for (Waiting& held : std::exchange(held_, {}))
    for (PmixRelay::Outgoing& outgoing : answer_question(held.host, std::move(held.question)))
      out.push_back(std::move(outgoing));
  return out;
}

std::vector<PmixRelay::Outgoing> PmixNameTable::answer_question(std::size_t host,
                                                                wire::PmixNames question) {
  using Action = wire::PmixNames::Action;
  std::vector<PmixRelay::Outgoing> out;
  if (question.action == Action::lookup) {
    std::erase_if(waiting_, [&](const Waiting& waiting) {  // a repeated question
      return waiting.host == host && waiting.question.id == question.id;
    });
    if (question.wait == 0 || has_all(question.keys))
      out.push_back({{host}, look_up(question)});
    else if (waiting_.size() >= kMaxWaiting || question.keys.size() > kMaxNames)
      out.push_back({{host}, answer(question.id, kPmixErrOutOfResource)});
    else
      waiting_.push_back({host, std::move(question)});
    return out;
  }
  const bool publishes = question.action == Action::publish;
  out.push_back({{host}, answer(question.id, change(host, question))});
  if (publishes)
    std::erase_if(waiting_, [&](const Waiting& waiting) {
      if (!has_all(waiting.question.keys)) return false;
      out.push_back({{waiting.host}, look_up(waiting.question)});
      return true;
    });
  return out;
}

std::int32_t PmixNameTable::change(std::size_t host, const wire::PmixNames& question) {
  const auto do_it = [&] {
    return question.action == wire::PmixNames::Action::publish ? publish(question)
                                                               : unpublish(question);
  };
  if (!keeping_) return do_it();
  Answered& answered = answered_[host];
  const auto [entry, is_new] = answered.statuses.try_emplace(question.id);
  if (!is_new) return entry->second;
  const std::int32_t status = entry->second = do_it();
  answered.ids.push_back(question.id);
  if (answered.ids.size() > kMaxAnswered) {
    answered.statuses.erase(answered.ids.front());
    answered.ids.pop_front();
  }
  return status;
}

std::int32_t PmixNameTable::publish(const wire::PmixNames& question) {
  if (question.keys.empty() || question.keys.size() != question.values.size())
    return kPmixErrBadParam;
  std::size_t bytes = 0;
  std::set<std::string_view> fresh;
  for (std::size_t i = 0; i < question.keys.size(); ++i) {
    if (names_.contains(question.keys[i]) || !fresh.insert(question.keys[i]).second)
      return kPmixErrDuplicateKey;
    bytes += question.keys[i].size() + question.values[i].size();
  }
  if (names_.size() + fresh.size() > kMaxNames || bytes_ + bytes > kMaxBytes)
    return kPmixErrOutOfResource;
  for (std::size_t i = 0; i < question.keys.size(); ++i)
    names_[question.keys[i]] = {question.rank, question.values[i]};
  bytes_ += bytes;
  return 0;
}

/// Only the rank that published a name can remove it. Empty `keys`: removes all names of the rank.
std::int32_t PmixNameTable::unpublish(const wire::PmixNames& question) {
  std::size_t removed = 0;
  for (auto it = names_.begin(); it != names_.end();) {
    const bool named =
        question.keys.empty() || std::ranges::find(question.keys, it->first) != question.keys.end();
    if (!named || it->second.rank != question.rank) {
      ++it;
      continue;
    }
    bytes_ -= it->first.size() + it->second.value.size();
    it = names_.erase(it);
    ++removed;
  }
  return question.keys.empty() || removed == question.keys.size() ? 0 : kPmixErrNotFound;
}

bool PmixNameTable::has_all(const std::vector<std::string>& keys) const {
  return std::ranges::all_of(keys, [&](const std::string& key) { return names_.contains(key); });
}

wire::PmixNamesDone PmixNameTable::look_up(const wire::PmixNames& question) const {
  wire::PmixNamesDone done = answer(question.id, 0);
  std::size_t bytes = 0;
  for (const std::string& key : question.keys) {
    const auto found = names_.find(key);
    if (found == names_.end()) continue;
    bytes += key.size() + found->second.value.size();
    if (bytes > kMaxAnswerBytes) return answer(question.id, kPmixErrOutOfResource);
    done.ranks.push_back(found->second.rank);
    done.keys.push_back(key);
    done.values.push_back(found->second.value);
  }
  if (done.keys.size() < question.keys.size() || done.keys.empty())
    done.status = done.keys.empty() ? kPmixErrNotFound : kPmixErrPartialSuccess;
  return done;
}

}  // namespace sortie::launcher
