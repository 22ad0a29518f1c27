// SPDX-License-Identifier: Apache-2.0
// A profiler that NVTX loads (NVTX_INJECTION64_PATH), as Nsight Systems is: it notes ranges as text,
// "[forward [encoder] ]".
#include <nvtx3/nvToolsExt.h>

#include <cstring>

namespace {

char notes[4096];
char domains[256];

void note(const char* text) { std::strncat(notes, text, sizeof notes - std::strlen(notes) - 1); }

nvtxDomainHandle_t NVTX_API create_domain(const char* name) {
  std::strncat(domains, name, sizeof domains - std::strlen(domains) - 1);
  return reinterpret_cast<nvtxDomainHandle_t>(domains);
}

int NVTX_API push(nvtxDomainHandle_t, const nvtxEventAttributes_t* attributes) {
  note("[");
  note(attributes->message.ascii);
  return 0;
}

int NVTX_API pop(nvtxDomainHandle_t) {
  note("]");
  return 0;
}

template <class Function>
void replace(NvtxFunctionTable table, NvtxCallbackIdCore2 id, Function function) {
  *table[id] = reinterpret_cast<NvtxFunctionPointer>(function);
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) const char* profiler_notes() { return notes; }
__attribute__((visibility("default"))) const char* profiler_domains() { return domains; }

__attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t tables) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(tables(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0) return 0;
  replace(table, NVTX_CBID_CORE2_DomainCreateA, create_domain);
  replace(table, NVTX_CBID_CORE2_DomainRangePushEx, push);
  replace(table, NVTX_CBID_CORE2_DomainRangePop, pop);
  return 1;
}

}  // extern "C"
