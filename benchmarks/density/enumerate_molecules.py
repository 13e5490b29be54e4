"""Make the list of further training molecules of the preset `wider`: enumerated, not chosen by hand.

    python benchmarks/density/enumerate_molecules.py -o src/pinchpoint/systems/density/data/enumerated.npz

Molecules of C, N and O grow atom by atom: an atom is added, a bond becomes a higher one, a ring is closed, a
nitrogen atom is oxidised (nitro groups, N-oxides, nitrones), or a group becomes an azide, a diazo group or an
isocyanide. All molecules of up to four heavy atoms that no rule below excludes are kept, and random ones of
five to seven; then random pairs of an aromatic ring or a small molecule with another, up to nine heavy atoms.
Draws prefer carbon, as most molecules have more C than N and O; few enumerated ones do.
Molecules that have the bonds of any molecule of `molecules.txt`, held out or not, or of `unfamiliar.txt`, are
left out, whatever their conformation. Geometries are the best of a few conformers of RDKit's force fields
(MMFF94, or UFF where it lacks parameters). The draws have a fixed seed; other versions of RDKit may find
other conformers. Needs RDKit. Letters: A atoms.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from rdkit import Chem, RDLogger  # pyright: ignore[reportMissingImports]
from rdkit.Chem import AllChem  # pyright: ignore[reportMissingImports]
from unfamiliar_systems import systems

from pinchpoint.systems.density.data.molecules import RADII_A, molecule, names, too_close

RDLogger.DisableLog("rdApp.*")
SEED = 25
ELEMENTS = {"C": 4, "N": 3, "O": 2}  # and their bonds
COMPLETE = 4  # heavy atoms of the molecules that are enumerated completely
SAMPLED = {5: 480, 6: 380, 7: 160}  # random molecules that grew
PARENTS = {5: 10_000, 6: 500, 7: 250}  # molecules with one heavy atom fewer that they grow from
JOINED = {6: 120, 7: 140, 8: 110, 9: 40}  # random pairs
CARBON = 2.5  # a molecule is this many times as likely to be drawn as one with N or O in place of a C
CONFORMERS = 4
BOND = 1.3  # times the sum of two covalent radii: atoms closer than this are bonded
ORDERS = (Chem.BondType.SINGLE, Chem.BondType.DOUBLE, Chem.BondType.TRIPLE)
AROMATICS = [
    "c1ccccc1",
    "c1ccncc1",
    "c1ccnnc1",
    "c1cnccn1",
    "c1cncnc1",
    "c1ncncn1",
    "c1cc[nH]c1",
    "c1ccoc1",
    "c1cn[nH]c1",
    "c1c[nH]cn1",
    "c1cocn1",
    "c1conn1",
    "c1ccno1",
    "c1nnc[nH]1",
    "c1nn[nH]n1",
    "c1nnco1",
    "c1ncno1",
    "c1cnon1",
    "O=c1cc[nH]cc1",
    "O=c1ccocc1",
    "O=c1cccc[nH]1",
]
# Patterns that no kept molecule has: chains of four N or O outside aromatic rings, O-O-O, O-O-N, O=O, triple
# and cumulated bonds in rings, rings of three or four atoms whose electrons are antiaromatic.
EXCLUDED = [
    Chem.MolFromSmarts(pattern)
    for pattern in (
        "[N,O]~[N,O]~[N,O;!$([N-])]~[N,O;!$([N-])]",
        "[O]~[O]~[O,N]",
        "O=O",
        "[R]#[R]",
        "[R]=[R]=[R]",
        "[r3]=[r3][N,O;r3;!$([N+])]",
        "[r4]=[r4]-[r4]=[r4]",
        "[#6-,#7-]~[#6,#7;R]",
    )
]


def grow(mol: Chem.Mol) -> Iterator[Chem.RWMol]:
    """Yield every molecule that is one change away; some have one heavy atom more."""
    free = [atom.GetTotalNumHs() for atom in mol.GetAtoms()]
    count = mol.GetNumAtoms()
    for at, hydrogens in enumerate(free):
        atom = mol.GetAtomWithIdx(at)
        if atom.GetFormalCharge():
            continue
        for element, valence in ELEMENTS.items():
            for order in range(1, min(hydrogens, valence, 3) + 1):
                changed = Chem.RWMol(mol)
                changed.AddBond(at, changed.AddAtom(Chem.Atom(element)), ORDERS[order - 1])
                yield changed
        if atom.GetSymbol() == "N":
            yield from _oxidise(mol, at, hydrogens)
        for other in range(at + 1, count):
            if not hydrogens or not free[other] or mol.GetAtomWithIdx(other).GetFormalCharge():
                continue
            changed, bond = Chem.RWMol(mol), mol.GetBondBetweenAtoms(at, other)
            if bond is None:
                changed.AddBond(at, other, ORDERS[0])
            elif bond.GetBondType() in ORDERS[:2]:
                changed.GetBondBetweenAtoms(at, other).SetBondType(
                    ORDERS[ORDERS.index(bond.GetBondType()) + 1]
                )
            else:
                continue
            yield changed


def _oxidise(mol: Chem.Mol, at: int, hydrogens: int) -> Iterator[Chem.RWMol]:
    """Yield the molecules with one more atom at a nitrogen atom that then has a positive charge."""
    bonds = [bond.GetBondType() for bond in mol.GetAtomWithIdx(at).GetBonds()]

    def with_charge(element: str, order: Chem.BondType) -> Chem.RWMol:
        changed = Chem.RWMol(mol)
        new = Chem.Atom(element)
        new.SetFormalCharge(-1)
        changed.AddBond(at, changed.AddAtom(new), order)
        changed.GetAtomWithIdx(at).SetFormalCharge(1)
        return changed

    if hydrogens == 0:
        yield with_charge("O", ORDERS[0])  # nitro groups, N-oxides, nitrones, nitrile oxides
    if hydrogens == 1 and bonds == [ORDERS[1]]:
        yield with_charge("N", ORDERS[1])  # azides, diazo groups
    if hydrogens == 2 and bonds == [ORDERS[0]]:
        yield with_charge("C", ORDERS[2])  # isocyanides


def join(first: Chem.Mol, second: Chem.Mol, draw: random.Random) -> Chem.RWMol | None:
    """Return two molecules with a bond between two random atoms, in place of a hydrogen atom of each."""
    ends = [
        [atom.GetIdx() for atom in mol.GetAtoms() if atom.GetTotalNumHs() and not atom.GetFormalCharge()]
        for mol in (first, second)
    ]
    if not all(ends):
        return None
    joined = Chem.RWMol(Chem.CombineMols(first, second))
    pair = draw.choice(ends[0]), draw.choice(ends[1]) + first.GetNumAtoms()
    joined.AddBond(*pair, ORDERS[0])
    for at in pair:
        atom = joined.GetAtomWithIdx(at)
        if atom.GetNumExplicitHs():
            atom.SetNumExplicitHs(atom.GetNumExplicitHs() - 1)
    return joined


def sane(changed: Chem.RWMol) -> str | None:
    """Return the canonical SMILES of a molecule; None if a rule excludes it."""
    try:
        mol = Chem.MolFromSmiles(Chem.MolToSmiles(changed))
    except (RuntimeError, ValueError):
        return None
    if mol is None or any(mol.HasSubstructMatch(pattern) for pattern in EXCLUDED):
        return None
    rings = mol.GetRingInfo().AtomRings()
    if len(rings) > 2 or any(atom.GetNumRadicalElectrons() for atom in mol.GetAtoms()):
        return None
    if len(rings) == 2:
        shared = set(rings[0]) & set(rings[1])
        small = min(map(len, rings)) <= 4
        double = any(bond.IsInRing() and bond.GetBondType() != ORDERS[0] for bond in mol.GetBonds())
        # No double bond at a bridge, nor beside a fused ring of three or four.
        if len(shared) > 2 or (shared and small and double):
            return None
    return Chem.MolToSmiles(mol)


def draw_molecules() -> list[str]:
    """Return the SMILES of all molecules: the complete ones by size, then the random ones in random order."""
    draw = random.Random(SEED)
    levels: dict[int, list[str]] = {1: sorted(ELEMENTS)}
    for size in range(1, 8):
        if size > 1:
            parents = levels[size - 1]
            if len(parents) > PARENTS.get(size, len(parents)):
                parents = sample(parents, PARENTS[size], draw)
            levels[size] = []
            pool = _grown(parents, size)
        else:
            pool = set(levels[1])
        fresh = pool
        while fresh:  # bonds become higher and rings close until nothing is new
            fresh = _grown(fresh, size) - pool if size <= COMPLETE + 1 else set()
            pool |= fresh
        levels[size] = sorted(pool)
    complete = [smiles for size in range(1, COMPLETE + 1) for smiles in levels[size]]
    sampled = [smiles for size, count in SAMPLED.items() for smiles in sample(levels[size], count, draw)]
    small = [smiles for size in (1, 2, 3, 4) for smiles in levels[size]]
    likely = [CARBON ** (carbons(smiles) - Chem.MolFromSmiles(smiles).GetNumAtoms()) for smiles in small]
    joined: dict[int, set[str]] = {size: set() for size in JOINED}
    while any(len(joined[size]) < count for size, count in JOINED.items()):
        first, second = draw.choices(small, likely, k=2)
        if draw.random() < 0.6:
            first = draw.choice(AROMATICS)
        one, other = Chem.MolFromSmiles(first), Chem.MolFromSmiles(second)
        size = one.GetNumAtoms() + other.GetNumAtoms()
        if len(joined.get(size, ())) >= JOINED.get(size, 0):
            continue
        pair = join(one, other, draw)
        if pair is not None and (smiles := sane(pair)) is not None:
            joined[size].add(smiles)
    rest = [*sampled, *AROMATICS, *(smiles for each in joined.values() for smiles in sorted(each))]
    rest = sorted(set(rest) - set(complete))
    draw.shuffle(rest)
    return [*complete, *rest]


def carbons(smiles: str) -> int:
    """Return the number of carbon atoms."""
    return smiles.upper().count("C")


def sample(pool: list[str], count: int, draw: random.Random) -> list[str]:
    """Draw molecules of one size without replacement, with probabilities that prefer carbon."""
    keys = {smiles: draw.random() ** (CARBON ** -carbons(smiles)) for smiles in pool}
    return sorted(pool, key=lambda smiles: keys[smiles], reverse=True)[:count]


def _grown(parents: Iterable[str], size: int) -> set[str]:
    """Return the sane molecules of a size that are one change away from the parents."""
    grown = set()
    for parent in sorted(parents):
        for changed in grow(Chem.MolFromSmiles(parent)):
            if changed.GetNumAtoms() == size and (smiles := sane(changed)) is not None:
                grown.add(smiles)
    return grown


def embed(smiles: str) -> tuple[tuple[str, ...], np.ndarray] | None:
    """Return the species and positions (A, 3) of the best conformer; None if there is no sound one."""
    mol = Chem.AddHs(Chem.MolFromSmiles(smiles))
    if mol.GetNumAtoms() < 2:
        return None
    ids = list(AllChem.EmbedMultipleConfs(mol, CONFORMERS, randomSeed=SEED))
    if AllChem.MMFFHasAllMoleculeParams(mol):
        energies = AllChem.MMFFOptimizeMoleculeConfs(mol, maxIters=1000)
    elif AllChem.UFFHasAllMoleculeParams(mol):
        energies = AllChem.UFFOptimizeMoleculeConfs(mol, maxIters=1000)
    else:
        return None
    if not ids or len(energies) != len(ids):
        return None
    best = ids[int(np.argmin([energy for _, energy in energies]))]
    species = tuple(atom.GetSymbol() for atom in mol.GetAtoms())
    positions = np.asarray(mol.GetConformer(best).GetPositions())
    positions = positions - positions.mean(axis=0)
    bonds = {tuple(sorted((bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()))) for bond in mol.GetBonds()}
    if bonds != set(bonds_of(species, positions)) or too_close(species, positions):
        return None
    return species, positions


def bonds_of(species: tuple[str, ...], positions: np.ndarray) -> list[tuple[int, int]]:
    """Return the pairs of atoms that are bonded by their distance."""
    radii = np.array([RADII_A[symbol] for symbol in species])
    apart = np.linalg.norm(positions[:, None] - positions, axis=2)
    near = np.triu(apart < BOND * (radii[:, None] + radii), 1)
    return [(int(one), int(other)) for one, other in zip(*np.nonzero(near), strict=True)]


def skeleton(species: tuple[str, ...], positions: np.ndarray) -> str:
    """Return a text that is the same for two molecules with the same atoms and bonds."""
    graph = Chem.RWMol()
    for symbol in species:
        atom = Chem.Atom(symbol)
        atom.SetNoImplicit(True)
        graph.AddAtom(atom)
    for one, other in bonds_of(species, positions):
        graph.AddBond(one, other, ORDERS[0])
    graph.UpdatePropertyCache(strict=False)
    return Chem.MolToSmiles(graph)


def name_molecules(species_list: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Yield a name for each molecule: its formula and a number, such as `C3H4N2-2`."""
    numbers: Counter[str] = Counter()
    for species in species_list:
        counts = {symbol: species.count(symbol) for symbol in "CHNO"}
        formula = "".join(
            f"{symbol}{count if count > 1 else ''}" for symbol, count in counts.items() if count
        )
        numbers[formula] += 1
        yield f"{formula}-{numbers[formula]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-o", "--output", required=True, type=Path)
    output: Path = parser.parse_args().output
    known = {skeleton(each.species, each.positions) for each in map(molecule, names())}
    known |= {skeleton(each.species, each.positions) for each in systems() if each.lattice is None}
    smiles_list = draw_molecules()
    kept: list[tuple[str, tuple[str, ...], np.ndarray]] = []
    for smiles in smiles_list:
        geometry = embed(smiles)
        if geometry is None or (bonds := skeleton(*geometry)) in known:
            continue
        known.add(bonds)
        kept.append((smiles, *geometry))
    symbols = "".join(RADII_A)

    def text(lines: Iterable[str]) -> np.ndarray:
        return np.frombuffer("\n".join(lines).encode(), np.uint8)

    np.savez_compressed(
        output,
        names=text(name_molecules(species for _, species, _ in kept)),
        smiles=text(smiles for smiles, *_ in kept),
        atoms=np.array([len(species) for _, species, _ in kept], np.uint8),
        species=np.array([symbols.index(symbol) for _, species, _ in kept for symbol in species], np.uint8),
        positions_milli_a=np.concatenate(
            [np.rint(1000 * positions).astype(np.int16) for _, _, positions in kept]
        ),
    )
    sizes = Counter(sum(symbol != "H" for symbol in species) for _, species, _ in kept)
    print(f"{len(kept)} of {len(smiles_list)} molecules; by heavy atoms {dict(sorted(sizes.items()))}")


if __name__ == "__main__":
    main()
