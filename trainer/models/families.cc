#include "trainer/models/families.h"

#include <algorithm>
#include <vector>

namespace sortie::trainer {

// One function per family's file.
Family llama_family();
Family gpt_neox_family();

std::span<const Family> families() {
  static const std::vector<Family> all = {llama_family(), gpt_neox_family()};
  return all;
}

const Family& family_of(std::string_view architecture) {
  const auto all = families();
  const auto found = std::ranges::find(all, architecture, &Family::name);
  SORTIE_CHECK(found != all.end(), "architecture {}", architecture);
  return *found;
}

}  // namespace sortie::trainer
