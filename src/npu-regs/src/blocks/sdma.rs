//! SDMA, AXI configuration of the system DMA.

axi_registers!(Sdma, "SDMA", 0x9000);
