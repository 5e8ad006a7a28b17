#include "trainer/models/families.h"

#include <algorithm>
#include <vector>

namespace sortie::trainer {

// One function per family's file.
Family gpt2_family();
Family gpt_neo_family();
Family gpt_neox_family();
Family llama_family();
Family mistral_family();
Family qwen2_family();
Family qwen3_family();
Family mixtral_family();
Family qwen3_moe_family();
Family deepseek_v3_family();

std::span<const Family> families() {
  static const std::vector<Family> all = {gpt2_family(),       gpt_neo_family(), gpt_neox_family(),
                                          llama_family(),      mistral_family(), qwen2_family(),
                                          qwen3_family(),      mixtral_family(), qwen3_moe_family(),
                                          deepseek_v3_family()};
  return all;
}

const Family& family_of(std::string_view architecture) {
  const auto all = families();
  const auto found = std::ranges::find(all, architecture, &Family::name);
  SORTIE_CHECK(found != all.end(), "architecture {}", architecture);
  return *found;
}

}  // namespace sortie::trainer
