package crl

// Dates of the proleptic Gregorian calendar in UTC, from and to seconds since
// 1970. They are most of an entry's work otherwise: package time is for any zone.
// Only years 1 to 9999 may be asked for.

const (
	firstSecond = -62135596800 // 0001-01-01T00:00:00Z
	lastSecond  = 253402300799 // 9999-12-31T23:59:59Z

	secondsADay = 86400
	// Years are counted from 1 March, so that the day of a leap year is the last.
	// The first one is 1 March of year 0, and the calendar repeats after 400.
	daysBefore1970 = 719468
	daysIn400Years = 146097
)

// dateOf returns the date of the day that at is in, and the second of that day.
func dateOf(at int64) (year, month, day, second int) {
	at += daysBefore1970 * secondsADay // positive
	days, second := int(at/secondsADay), int(at%secondsADay)
	era, days := days/daysIn400Years, days%daysIn400Years
	y := (days - days/1460 + days/36524 - days/146096) / 365
	days -= 365*y + y/4 - y/100
	m := (5*days + 2) / 153 // 0: March
	day = days - (153*m+2)/5 + 1
	if m < 10 {
		return 400*era + y, m + 3, day, second
	}
	return 400*era + y + 1, m - 9, day, second
}

// secondsOf returns the first second of a date.
func secondsOf(year, month, day int) int64 {
	m := month - 3
	if month < 3 {
		year, m = year-1, month+9
	}
	era, y := year/400, year%400
	days := 365*y + y/4 - y/100 + (153*m+2)/5 + day - 1
	return int64(era*daysIn400Years+days-daysBefore1970) * secondsADay
}
