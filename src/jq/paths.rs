//! Sets and deletes the values at paths within a value.

use std::rc::Rc;

use jaq_json::{Num, Val};

use crate::print::compact;

/// Maximum length to which setting an item extends an array.
const MAX_ITEMS: usize = 1 << 24;

/// Sets the value at a path to `new`, and creates missing arrays and objects on the way.
///
/// # Errors
/// A step that does not fit the value to which it applies.
pub(crate) fn set(value: Val, path: &[Val], new: Val) -> Result<Val, String> {
    let Some((step, rest)) = path.split_first() else { return Ok(new) };
    match (step, value) {
        (Val::TStr(_), value @ (Val::Null | Val::Obj(_))) => {
            let mut object = if let Val::Obj(object) = value { object } else { Rc::default() };
            let entries = Rc::make_mut(&mut object);
            let entry = entries.entry(step.clone()).or_insert(Val::Null);
            *entry = set(std::mem::take(entry), rest, new)?;
            Ok(Val::Obj(object))
        }
        (Val::Num(number), value @ (Val::Null | Val::Arr(_))) => {
            let mut items = if let Val::Arr(items) = value { items } else { Rc::default() };
            let at = index(number, items.len()).ok_or("Out of bounds negative array index")?;
            if at >= MAX_ITEMS {
                return Err("Array index too large".to_owned());
            }
            let all = Rc::make_mut(&mut items);
            if at >= all.len() {
                all.resize(at + 1, Val::Null);
            }
            if let Some(item) = all.get_mut(at) {
                *item = set(std::mem::take(item), rest, new)?;
            }
            Ok(Val::Arr(items))
        }
        (Val::Obj(_), value @ (Val::Null | Val::Arr(_))) => {
            let items = if let Val::Arr(items) = value { items } else { Rc::default() };
            let (from, to) = range(step, items.len())
                .ok_or_else(|| cannot_index(step, &Val::Arr(items.clone())))?;
            let part = items.get(from..to).unwrap_or_default().to_vec();
            let Val::Arr(part) = set(Val::Arr(Rc::new(part)), rest, new)? else {
                return Err("A slice of an array can only be assigned another array".to_owned());
            };
            let before = items.get(..from).unwrap_or_default();
            let after = items.get(to..).unwrap_or_default();
            let all = [before, &part, after];
            Ok(Val::Arr(Rc::new(all.concat())))
        }
        (_, value) => Err(cannot_index(step, &value)),
    }
}

/// Deletes the value at a path, if there is one.
///
/// # Errors
/// A step that does not fit the value to which it applies.
pub(crate) fn delete(value: Val, path: &[Val]) -> Result<Val, String> {
    let Some((step, rest)) = path.split_first() else { return Ok(Val::Null) };
    match (step, value) {
        (_, Val::Null) => Ok(Val::Null),
        (Val::TStr(_), Val::Obj(mut object)) => {
            let entries = Rc::make_mut(&mut object);
            if rest.is_empty() {
                entries.shift_remove(step);
            } else if let Some(entry) = entries.get_mut(step) {
                *entry = delete(std::mem::take(entry), rest)?;
            }
            Ok(Val::Obj(object))
        }
        (Val::Num(number), Val::Arr(mut items)) => {
            let all = Rc::make_mut(&mut items);
            let at = index(number, all.len()).filter(|at| *at < all.len());
            if let (Some(at), true) = (at, rest.is_empty()) {
                all.remove(at);
            } else if let Some(item) = at.and_then(|at| all.get_mut(at)) {
                *item = delete(std::mem::take(item), rest)?;
            }
            Ok(Val::Arr(items))
        }
        (Val::Obj(_), Val::Arr(mut items)) => {
            let (from, to) = range(step, items.len())
                .ok_or_else(|| cannot_index(step, &Val::Arr(items.clone())))?;
            let all = Rc::make_mut(&mut items);
            if rest.is_empty() {
                all.drain(from..to);
                return Ok(Val::Arr(items));
            }
            let part = Val::Arr(Rc::new(all.drain(from..to).collect()));
            if let Val::Arr(part) = delete(part, rest)? {
                all.splice(from..from, part.iter().cloned());
            }
            Ok(Val::Arr(items))
        }
        (_, value) => Err(cannot_index(step, &value)),
    }
}

/// Deletes the values at all of these paths, from the last to the first so that indices stay valid.
///
/// # Errors
/// An error of [`delete`], or a path that is not an array.
pub(crate) fn delete_all(value: Val, paths: &Val) -> Result<Val, String> {
    let Val::Arr(paths) = paths else {
        return Err("Paths must be specified as an array".to_owned());
    };
    let mut sorted = paths.to_vec();
    sorted.sort();
    sorted.iter().rev().try_fold(value, |value, path| match path {
        Val::Arr(path) => delete(value, path),
        _ => Err("Path must be specified as an array".to_owned()),
    })
}

/// Returns the position that an index means in an array of this length. A negative index counts
/// from the end.
fn index(number: &Num, length: usize) -> Option<usize> {
    let number = match number {
        Num::Int(_) | Num::BigInt(_) => number.as_isize()?,
        Num::Float(_) | Num::Dec(_) => {
            let digits = compact(&Val::Num(number.clone()));
            digits.split('.').next()?.parse().ok()?
        }
    };
    match number < 0 {
        true => length.checked_sub(number.unsigned_abs()),
        false => usize::try_from(number).ok(),
    }
}

/// Returns the range that an object with `start` and `end` means in an array of this length.
fn range(step: &Val, length: usize) -> Option<(usize, usize)> {
    let Val::Obj(bounds) = step else { return None };
    let bound = |name: &'static str, default: usize| match bounds.get(&Val::utf8_str(name)) {
        None | Some(Val::Null) => Some(default),
        Some(Val::Num(number)) => Some(index(number, length).unwrap_or(0).min(length)),
        Some(_) => None,
    };
    let from = bound("start", 0)?;
    let to = bound("end", length)?;
    Some((from, to.max(from)))
}

fn cannot_index(step: &Val, value: &Val) -> String {
    format!("Cannot index {} with {}", compact(value), compact(step))
}
