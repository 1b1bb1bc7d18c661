#ifndef FAKE_NVML_PCI_H
#define FAKE_NVML_PCI_H

#include "state.h"

/* Fill in what the JSON at a path says of a PCI device. */
nvmlReturn_t pci_info(const struct json *tree, const char *path, nvmlPciInfo_t *info);

#endif
