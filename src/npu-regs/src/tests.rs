//! The register table against the architecture: encodings, refusals, round trips.

use expect_test::{Expect, expect};
use proptest::prelude::*;

use super::*;

#[expect(clippy::needless_pass_by_value, reason = "that is how expect! is used")]
fn check(program: &Program, expected: Expect) {
    let text: Vec<String> = program.words().iter().map(Word::to_string).collect();
    expected.assert_eq(&text.join("\n"));
}

#[test]
fn a_program_reads_as_text() {
    let mut program = Program::new();
    program
        .push(dpu::SPointer { pointer_pp_mode: true, executer_pp_en: true, pointer_pp_en: true, ..Default::default() })
        .unwrap();
    program.push(cna::ConvCon1 { conv_mode: ConvMode::Depthwise, ..Default::default() }).unwrap();
    program.push(dpu::OutCvtOffset { out_cvt_offset: -123 }).unwrap();
    program.push(cna::FcCon0::default()).unwrap();
    program.finish(BlockMask::CONVOLUTION);
    program.link(Link { dma: 0x1000, words: 130 }).unwrap();
    check(
        &program,
        expect![[r#"
            DPU_S_POINTER pointer_pp_mode=true executer_pp_en=true pointer_pp_en=true
            CNA_CONV_CON1 conv_mode=Depthwise
            DPU_OUT_CVT_OFFSET out_cvt_offset=-123
            CNA_FC_CON0 0
            PC_BASE_ADDRESS pc_source_addr=256
            PC_REGISTER_AMOUNTS pc_data_amount=64
            MARKER
            ENABLE CNA+CORE+DPU+DPU_RDMA"#]],
    );
    assert_eq!(program.words()[0], Word(0x1001_0000_000e_4004));
    assert_eq!(program.words()[7], Word(0x0081_0000_001d_0008));
}

#[test]
fn a_width_over_eleven_bits_is_refused() {
    let size = cna::DataSize0 { datain_width: 2048, datain_height: 1 };
    assert_eq!(size.encode().unwrap_err().to_string(), "CNA_DATA_SIZE0.datain_width: 2048 does not fit 11 bits");
}

#[test]
fn a_negative_value_keeps_its_sign() {
    let scale = dpu::OutCvtScale { fp32tofp16_en: false, out_cvt_scale: -32768 };
    assert_eq!(scale.encode(), Ok(0x8000));
    assert_eq!(dpu::OutCvtScale::decode(0x8000), Ok(scale));
    assert!(dpu::OutCvtScale { out_cvt_scale: 32768, ..scale }.encode().is_err());
}

#[test]
fn unknown_meanings_and_reserved_bits_are_refused() {
    assert!(matches!(cna::ConvCon1::decode(1), Err(FieldError::Unknown { field: "conv_mode", bits: 1, .. })));
    assert!(matches!(cna::ConvCon1::decode(1 << 31), Err(FieldError::Reserved { bits: 0x8000_0000, .. })));
}

#[test]
fn a_word_whose_target_does_not_own_the_register_is_refused() {
    let word = Word(0x0801_0000_0000_100c);
    assert!(matches!(word.decode(), Err(WordError::UnknownRegister { block: Block::Core, offset: 0x100c, .. })));
    assert!(matches!(Word(0x0301_0000_0000_100c).decode(), Err(WordError::UnknownTarget { .. })));
    assert!(matches!(Word(0x0081_0000_0002_0008).decode(), Err(WordError::UnknownBlocks { .. })));
}

#[test]
fn the_table_has_one_entry_per_register_and_is_aligned() {
    let registers =
        |layout: Layout| layout.registers().iter().copied().flatten().map(move |register| (layout, register));
    let mut offsets = std::collections::BTreeSet::new();
    for (layout, register) in Layout::ALL.into_iter().flat_map(registers) {
        assert!(offsets.insert((layout.name(), register.offset)), "{} stands twice", register.name);
        assert_eq!(register.offset % 4, 0, "{}", register.name);
        assert!(register.name.starts_with(register.block.name()), "{}", register.name);
        let base = register.offset & 0xf000;
        assert!(register.block == Block::Pc || base != 0, "{} lies in the PC's window", register.name);
    }
}

#[test]
fn a_word_means_what_its_chip_makes_of_it() {
    let word = Word::write(cna::FeatureDataAddr::INFO, 16);
    assert_eq!(word.text(Layout::Rk3588).to_string(), "CNA_FEATURE_DATA_ADDR feature_base_addr=16");
    assert_eq!(word.text(Layout::Rk3576).to_string(), "CNA_UNNAMED_1070 value=16");
    let word = Word::write(rk3576::cna::CbufMode::INFO, 1 << 30);
    assert_eq!(word.text(Layout::Rk3576).to_string(), "CNA_CBUF_MODE window=true");
    assert!(matches!(word.decode(), Err(WordError::UnknownRegister { offset: 0x1018, .. })));
    assert_eq!(Layout::Rk3588.lookup(Block::Cna, 0x1018).map(|register| register.name), None);
}

proptest! {
    #[test]
    fn any_word_prints_and_decodes_without_panic(word: u64) {
        let _ = Word(word).to_string();
        let _ = Word(word).decode();
        let _ = Word(word).text(Layout::Rk3576).to_string();
    }

    #[test]
    fn what_decodes_encodes_to_the_same_bits(value: u32) {
        if let Ok(register) = dpu::EwCfg::decode(value) {
            prop_assert_eq!(register.encode(), Ok(value));
        }
        if let Ok(register) = cna::CvtCon0::decode(value) {
            prop_assert_eq!(register.encode(), Ok(value));
        }
    }
}
