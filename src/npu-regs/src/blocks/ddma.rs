//! DDMA, AXI configuration of the data DMA.

axi_registers!(Ddma, "DDMA", 0x8000);
