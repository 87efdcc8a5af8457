//! Values by their paths: set where nothing is yet, and taken out.

use std::rc::Rc;

use jaq_json::{Num, Val};

use crate::print::{COMPACT, json};

/// Most items of an array that setting one of them makes.
const ITEMS: usize = 1 << 24;

/// Puts `new` at a path; what is missing on the way is made.
///
/// # Errors
/// A step that does not fit what is there.
pub(crate) fn set(value: Val, path: &[Val], new: Val) -> Result<Val, String> {
    let Some((step, rest)) = path.split_first() else { return Ok(new) };
    match (step, value) {
        (Val::TStr(_), value @ (Val::Null | Val::Obj(_))) => {
            let mut object = if let Val::Obj(object) = value { object } else { Rc::default() };
            let entries = Rc::make_mut(&mut object);
            let place = entries.entry(step.clone()).or_insert(Val::Null);
            *place = set(std::mem::take(place), rest, new)?;
            Ok(Val::Obj(object))
        }
        (Val::Num(number), value @ (Val::Null | Val::Arr(_))) => {
            let mut items = if let Val::Arr(items) = value { items } else { Rc::default() };
            let at = index(number, items.len()).ok_or("Out of bounds negative array index")?;
            if at >= ITEMS {
                return Err("Array index too large".to_owned());
            }
            let all = Rc::make_mut(&mut items);
            if at >= all.len() {
                all.resize(at + 1, Val::Null);
            }
            if let Some(place) = all.get_mut(at) {
                *place = set(std::mem::take(place), rest, new)?;
            }
            Ok(Val::Arr(items))
        }
        (Val::Obj(_), value @ (Val::Null | Val::Arr(_))) => {
            let items = if let Val::Arr(items) = value { items } else { Rc::default() };
            let (from, to) =
                range(step, items.len()).ok_or_else(|| unfit(step, &Val::Arr(items.clone())))?;
            let part = items.get(from..to).unwrap_or_default().to_vec();
            let Val::Arr(part) = set(Val::Arr(Rc::new(part)), rest, new)? else {
                return Err("A slice of an array can only be assigned another array".to_owned());
            };
            let (before, after) = (items.get(..from), items.get(to..));
            let all = [before.unwrap_or_default(), &part, after.unwrap_or_default()];
            Ok(Val::Arr(Rc::new(all.concat())))
        }
        (_, value) => Err(unfit(step, &value)),
    }
}

/// Takes what is at a path out; a path that leads nowhere changes nothing.
///
/// # Errors
/// A step that does not fit what is there.
pub(crate) fn delete(value: Val, path: &[Val]) -> Result<Val, String> {
    let Some((step, rest)) = path.split_first() else { return Ok(Val::Null) };
    match (step, value) {
        (_, Val::Null) => Ok(Val::Null),
        (Val::TStr(_), Val::Obj(mut object)) => {
            let entries = Rc::make_mut(&mut object);
            if rest.is_empty() {
                entries.shift_remove(step);
            } else if let Some(place) = entries.get_mut(step) {
                *place = delete(std::mem::take(place), rest)?;
            }
            Ok(Val::Obj(object))
        }
        (Val::Num(number), Val::Arr(mut items)) => {
            let all = Rc::make_mut(&mut items);
            let at = index(number, all.len()).filter(|at| *at < all.len());
            if let (Some(at), true) = (at, rest.is_empty()) {
                all.remove(at);
            } else if let Some(place) = at.and_then(|at| all.get_mut(at)) {
                *place = delete(std::mem::take(place), rest)?;
            }
            Ok(Val::Arr(items))
        }
        (Val::Obj(_), Val::Arr(mut items)) => {
            let (from, to) =
                range(step, items.len()).ok_or_else(|| unfit(step, &Val::Arr(items.clone())))?;
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
        (_, value) => Err(unfit(step, &value)),
    }
}

/// Takes what is at all of these paths out, the last one first.
///
/// # Errors
/// As of [`delete`]; a path that is no array.
pub(crate) fn delete_all(value: Val, paths: &Val) -> Result<Val, String> {
    let Val::Arr(paths) = paths else {
        return Err("Paths must be specified as an array".to_owned());
    };
    let mut sorted = paths.to_vec();
    sorted.sort();
    sorted.iter().rev().try_fold(value, |value, path| match path {
        Val::Arr(path) => delete(value, path),
        Val::Null | Val::Bool(_) | Val::Num(_) | Val::BStr(_) | Val::TStr(_) | Val::Obj(_) => {
            Err("Path must be specified as an array".to_owned())
        }
    })
}

/// Returns the place that a number means in an array of this length; one below 0 counts from its end.
fn index(number: &Num, length: usize) -> Option<usize> {
    let number = match number {
        Num::Int(_) | Num::BigInt(_) => number.as_isize()?,
        Num::Float(_) | Num::Dec(_) => {
            let digits = json(&Val::Num(number.clone()), &COMPACT);
            digits.split('.').next()?.parse().ok()?
        }
    };
    match number < 0 {
        true => length.checked_sub(number.unsigned_abs()),
        false => usize::try_from(number).ok(),
    }
}

/// Returns the bounds that an object of `start` and `end` means in an array of this length.
fn range(step: &Val, length: usize) -> Option<(usize, usize)> {
    let Val::Obj(bounds) = step else { return None };
    let bound = |name: &'static str, default: usize| match bounds.get(&Val::utf8_str(name)) {
        None | Some(Val::Null) => Some(default),
        Some(Val::Num(number)) => Some(index(number, length).unwrap_or(0).min(length)),
        Some(Val::Bool(_) | Val::BStr(_) | Val::TStr(_) | Val::Arr(_) | Val::Obj(_)) => None,
    };
    let (from, to) = (bound("start", 0)?, bound("end", length)?);
    Some((from, to.max(from)))
}

fn unfit(step: &Val, value: &Val) -> String {
    format!("Cannot index {} with {}", json(value, &COMPACT), json(step, &COMPACT))
}
