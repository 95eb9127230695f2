use aya::programs::Program;
fn main() {
    let path = std::env::args().nth(1).unwrap();
    let only = std::env::args().nth(2);
    let mut loader = aya::EbpfLoader::new();
    for m in ["origins","states","counters","services","selectors","tables","endpoints","half_open_v4","half_open_v6","flows_v4","flows_v6","moved_out_v4","moved_out_v6","moved_back_v4","moved_back_v6","sockets"] { loader.map_max_entries(m, 1024); }
    let mut e = loader.load_file(path).unwrap();
    for (name, p) in e.programs_mut() {
        if only.as_ref().is_some_and(|o| o != name) { continue; }
        let (r, i) = match p {
            Program::SchedClassifier(p) => (p.load(), p.info()),
            Program::CgroupSockAddr(p) => (p.load(), p.info()),
            Program::CgroupSock(p) => (p.load(), p.info()),
            Program::SockOps(p) => (p.load(), p.info()),
            Program::Xdp(p) => (p.load(), p.info()),
            _ => panic!(),
        };
        match r { Ok(()) => println!("{name}: ok {:?}", i.unwrap().verified_instruction_count()),
            Err(err) => { let t = format!("{err:?}"); let t: Vec<_> = t.split("\\n").flat_map(|l| l.split('\n')).map(str::to_owned).collect(); println!("{name}: FAILED {} lines", t.len()); for l in &t[t.len().saturating_sub(if only.is_some() {120} else {6})..] { println!("   {l}"); } } }
    }
}
